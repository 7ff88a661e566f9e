"""`canary verify-weights`: files compared with the seal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tiny_weights import safetensors

from canary_mlflow.cli import canary


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
    done = check(it, version, "--dir", str(copy))
    assert done.exit_code == 1
    subject = f"{it.model} version {version}"
    assert done.stdout.splitlines() == [
        f"{subject}: tokenizer/config.json is gone since it was sealed",
        f"{subject}: more.safetensors was added since it was sealed",
        f"{subject}: model.safetensors changed since it was sealed",
    ]


def test_what_has_no_seal_that_holds_is_refused(sealed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it, version, _ = sealed
    source = str(it.client.get_model_version(it.model, version).source)
    bare = str(it.client.create_model_version(it.model, source).version)
    assert "it has no seal" in line_of(check(it, bare), 2)
    assert "not there; expected a folder" in line_of(check(it, version, "--dir", str(tmp_path / "none")), 2)
    assert "expected a version" in line_of(run(it.model, "--tracking-uri", it.uri), 2)
    monkeypatch.setenv("CANARY_KEYS", str(tmp_path / "keys"))
    assert "which is not among the trusted ones" in line_of(check(it, version), 2)
