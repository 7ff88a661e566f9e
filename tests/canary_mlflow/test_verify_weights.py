"""`canary verify-weights`: files compared with the seal, and the seal as OpenSSF model signing writes it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tiny_weights import safetensors

from canary_mlflow.cli import canary

# No dependency of ours: `pip install model-signing pyOpenSSL` (1.1.1 does not name the second) anywhere, and
# MODEL_SIGNING=…/bin/model_signing, or on the PATH.
MODEL_SIGNING = os.environ.get("MODEL_SIGNING") or shutil.which("model_signing")


def run(*words: str) -> Result:
    return CliRunner().invoke(canary, ["verify-weights", *words])


def check(it: Any, version: str, *words: str) -> Result:
    return run(f"models:/{it.model}/{version}", "--tracking-uri", it.uri, *words)


def line_of(result: Result, code: int) -> str:
    """The one line on stderr with which it ends."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    (line,) = result.stderr.splitlines()
    return line


@pytest.fixture
def sealed(recorded: Any) -> tuple[Any, str, Path]:
    """A version of two files, one of them in a folder, and where they are."""
    session = recorded.session(runs=2)
    run_id = recorded.children(session)[0]
    recorded.weights(run_id)
    recorded.client.log_text(run_id, "{}", "model/tokenizer/config.json")
    from canary_mlflow.registry.sessions.registering import register_version

    version = register_version(recorded.client, recorded.model, session, run_id)
    source = str(recorded.client.get_model_version(recorded.model, version).source)
    return recorded, version, Path(source.removeprefix("file://"))


def test_the_champions_files_are_those_of_its_seal(sealed: Any, tmp_path: Path) -> None:
    it, version, place = sealed
    done = check(it, version)
    assert (done.exit_code, done.stdout) == (0, f"{it.model} version {version}: 2 files, all as sealed\n")
    copy = tmp_path / "copy"
    shutil.copytree(place, copy)
    (copy / "registered_model_meta").write_text("model_name: m\n")  # MLflow adds it to what it fetches
    assert check(it, version, "--dir", str(copy)).exit_code == 0
    CliRunner().invoke(canary, ["bless", it.model, version, "--reason", "a test", "--tracking-uri", it.uri])
    assert run(f"models:/{it.model}@champion", "--tracking-uri", it.uri, "--dir", str(copy)).exit_code == 0


def test_each_file_that_differs_is_named(sealed: Any, tmp_path: Path) -> None:
    it, version, place = sealed
    copy = tmp_path / "copy"
    shutil.copytree(place, copy)
    (copy / "model.safetensors").write_bytes(safetensors(weight=np.zeros(4, np.float32)))
    (copy / "tokenizer" / "config.json").unlink()
    (copy / "more.safetensors").write_bytes(safetensors())
    done = check(it, version, "--dir", str(copy), "--export", str(tmp_path / "x.sig"))
    assert done.exit_code == 1
    subject = f"{it.model} version {version}"
    assert done.stdout.splitlines() == [
        f"{subject}: tokenizer/config.json is gone since it was sealed",
        f"{subject}: more.safetensors was added since it was sealed",
        f"{subject}: model.safetensors changed since it was sealed",
    ]
    assert not (tmp_path / "x.sig").exists()


def test_what_has_no_seal_that_holds_is_refused(sealed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it, version, place = sealed
    source = str(it.client.get_model_version(it.model, version).source)
    bare = str(it.client.create_model_version(it.model, source).version)
    assert "it has no seal" in line_of(check(it, bare), 2)
    assert "not there; expected a folder" in line_of(check(it, version, "--dir", str(tmp_path / "none")), 2)
    assert "expected a version" in line_of(run(it.model, "--tracking-uri", it.uri), 2)
    assert "expected VERSION, or --dir" in line_of(run("--dir", str(place)), 2)
    monkeypatch.setenv("CANARY_KEYS", str(tmp_path / "keys"))
    assert "which is not among the trusted ones" in line_of(check(it, version), 2)


def exported(sealed: Any, tmp_path: Path) -> tuple[Path, Path]:
    """The signature and the public key."""
    it, version, _ = sealed
    file = tmp_path / "model.sig"
    done = check(it, version, "--export", str(file))
    assert done.exit_code == 0, done.output
    return file, Path(done.stderr.rstrip().rpartition(" ")[2])


def test_an_export_says_what_the_seal_says_and_holds_without_a_registry(sealed: Any, tmp_path: Path) -> None:
    file, key = exported(sealed, tmp_path)
    place = sealed[2]
    assert run("--dir", str(place), "--signature", str(file), "--key", str(key)).exit_code == 0
    copy = tmp_path / "copy"
    shutil.copytree(place, copy)
    (copy / "more.safetensors").write_bytes(safetensors())
    done = run("--dir", str(copy), "--signature", str(file), "--key", str(key))
    assert (done.exit_code, done.stdout) == (1, f"{copy}: more.safetensors was added since it was sealed\n")


@pytest.mark.parametrize("what", ["payload", "signature", "key", "cut off", "another format"])
def test_an_export_that_was_tampered_with_is_none(sealed: Any, tmp_path: Path, what: str) -> None:
    file, key = exported(sealed, tmp_path)
    found = json.loads(file.read_text())
    envelope = found["dsseEnvelope"]
    if what == "payload":
        envelope["payload"] = envelope["payload"][:-8] + "AAAAAAA="
    elif what == "signature":
        envelope["signatures"][0]["sig"] = envelope["signatures"][0]["sig"][4:]
    elif what == "key":
        from cryptography.hazmat.primitives.asymmetric import ec

        from canary_mlflow.registry.guard.model_signing import pem

        key = tmp_path / "another.pem"
        key.write_bytes(pem(ec.generate_private_key(ec.SECP256R1()).public_key()))
    text = json.dumps(found)
    file.write_text(text[:100] if what == "cut off" else "[]" if what == "another format" else text)
    said = line_of(run("--dir", str(sealed[2]), "--signature", str(file), "--key", str(key)), 2)
    assert "not signed with the key" in said or "no signature of model signing 1.0" in said


@pytest.mark.skipif(MODEL_SIGNING is None, reason="the package model-signing is not installed")
def test_the_real_model_signing_takes_an_export(sealed: Any, tmp_path: Path) -> None:
    file, key = exported(sealed, tmp_path)

    def verify(folder: Path) -> subprocess.CompletedProcess[str]:
        words = ["verify", "key", str(folder), "--signature", str(file), "--public_key", str(key)]
        return subprocess.run([str(MODEL_SIGNING), *words], capture_output=True, text=True, check=False)

    done = verify(sealed[2])
    assert (done.returncode, "Verification succeeded" in done.stdout) == (0, True), done.stderr
    copy = tmp_path / "copy"
    shutil.copytree(sealed[2], copy)
    (copy / "model.safetensors").write_bytes(b"other weights")
    assert verify(copy).returncode != 0


@pytest.mark.skipif(MODEL_SIGNING is None, reason="the package model-signing is not installed")
def test_what_the_real_model_signing_signs_is_read(sealed: Any, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from canary_mlflow.registry.guard.model_signing import pem

    key = ec.generate_private_key(ec.SECP384R1())
    private, public, file = tmp_path / "key.pem", tmp_path / "key.pub", tmp_path / "model.sig"
    kind = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, *kind))
    public.write_bytes(pem(key.public_key()))
    words = ["sign", "key", str(sealed[2]), "--signature", str(file), "--private_key", str(private)]
    subprocess.run([str(MODEL_SIGNING), *words], capture_output=True, check=True)
    assert run("--dir", str(sealed[2]), "--signature", str(file), "--key", str(public)).exit_code == 0
