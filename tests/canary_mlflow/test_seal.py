"""A version without weights that can be loaded does not become champion: the command refuses it in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from mlflow.exceptions import MlflowException
from tiny_weights import CUT_OFF, NAN, safetensors

from canary_mlflow.analysis.ledger import decision_of, rows_of
from canary_mlflow.cli import canary
from canary_mlflow.errors import UsageError
from canary_mlflow.ledger.chain import Kind
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.seal import seal_version
from canary_mlflow.registry.sessions.registering import register_version
from canary_mlflow.registry.versions import Weights


def run(it: Any, *words: str) -> Result:
    return CliRunner().invoke(canary, [*words, "--tracking-uri", it.uri])


def refusal(result: Result) -> str:
    """The line with which wrong use ends."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def files_of(it: Any, version: str) -> Path:
    source = str(it.client.get_model_version(it.model, version).source)
    return Path(source.removeprefix("file://"))


def test_a_version_whose_files_were_removed_before_it_was_registered(recorded: Any) -> None:
    session = recorded.session(runs=2)
    run_id = recorded.children(session)[0]
    recorded.client.create_registered_model(recorded.model)
    source = f"{recorded.client.get_run(run_id).info.artifact_uri}/model"
    recorded.client.create_model_version(recorded.model, source, run_id=run_id, tags={"canary.session_id": session})
    for words in (("gate",), ("gate", "--dry-run")):
        said = refusal(run(recorded, *words, recorded.model, "1"))
        assert f"version 1 of {recorded.model!r}: no *.safetensors among its 0 files; expected files" in said
        assert "canary register SESSION MODEL --weights PATH" in said
    assert recorded.champion() is None
    assert registry_of(recorded.client).rows(recorded.model) == []


def swap(place: Path) -> None:
    (place / "model.safetensors").write_bytes(safetensors(weight=np.zeros(4, np.float32)))


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "swapped": (swap, "model.safetensors changed since it was sealed"),
    "added": (lambda place: (place / "more.safetensors").write_bytes(safetensors()), "more.safetensors was added"),
    "removed": (lambda place: (place / "model.safetensors").unlink(), "model.safetensors is gone since"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_files_that_changed_after_the_seal(recorded: Any, what: str) -> None:
    change, says = CHANGES[what]
    version = recorded.version(runs=2)
    change(files_of(recorded, version))
    assert says in refusal(run(recorded, "gate", recorded.model, version))
    assert recorded.champion() is None


@pytest.mark.parametrize(
    ("content", "says"),
    [(NAN, "model.safetensors: tensor broken holds a NaN"), (CUT_OFF, "model.safetensors: it has"), (b"", "cut off")],
)
def test_weights_that_nobody_can_load(recorded: Any, content: bytes, says: str) -> None:
    version = recorded.version_of(content)
    for words in (("gate",), ("bless", "--reason", "x"), ("override", "--reason", "x")):
        said = refusal(run(recorded, words[0], recorded.model, version, *words[1:]))
        assert says in said
        assert ("--without-weights" in said) == (words[0] != "gate")
    assert recorded.champion() is None


@pytest.mark.parametrize("act", ["bless", "override"])
def test_an_act_by_hand_may_say_that_nobody_need_load_it(recorded: Any, act: str) -> None:
    version = recorded.version_of(NAN)
    done = run(recorded, act, recorded.model, version, "--reason", "its numbers count", "--without-weights")
    assert done.exit_code == 0, done.output
    assert "its weights were not checked" in done.output
    assert recorded.champion() == version
    assert "its weights were not checked" in recorded.description(version)
    row = registry_of(recorded.client).rows(recorded.model)[-1]
    assert (row.kind, row.facts["without_weights"]) == (act, True)


def evidence_only(it: Any) -> str:
    session = it.session(runs=2)
    return register_version(it.client, it.model, session, it.children(session)[0], weights=Weights.NONE)


def test_a_version_that_says_it_is_evidence_only_is_promoted_and_the_report_says_so(recorded: Any) -> None:
    version = evidence_only(recorded)
    done = run(recorded, "gate", recorded.model, version)
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    assert "evidence only: no weights to load" in said
    assert "Load it as" not in said
    assert recorded.tags(version)["canary.weights"] == "none"
    assert "evidence only: no weights to load" in recorded.description(version)
    rows, _ = rows_of(recorded.client, recorded.model, version)
    told = decision_of(rows[-1].row, rows[-1].row.facts)  # what the pages show
    assert told is not None
    assert told.evidence_only


def test_weights_that_turn_up_in_evidence_are_another_version(recorded: Any) -> None:
    version = evidence_only(recorded)
    recorded.weights(recorded.client.get_model_version(recorded.model, version).run_id)
    assert "model.safetensors was added since it was sealed" in refusal(run(recorded, "gate", recorded.model, version))


def test_evidence_only_is_no_excuse_for_weights_that_nobody_can_load(recorded: Any) -> None:
    session = recorded.session(runs=2)
    run_id = recorded.children(session)[0]
    recorded.weights(run_id, NAN)
    version = register_version(recorded.client, recorded.model, session, run_id, weights=Weights.NONE)
    said = refusal(run(recorded, "gate", recorded.model, version))
    assert "tensor broken holds a NaN or an infinity" in said


@pytest.mark.parametrize(
    ("evaluation", "says"),
    [
        (
            {"recorded": {"eval_loss": 0.5}, "repeated": {"eval_loss": 0.9}, "different": ["eval_loss"]},
            "its saved weights give eval_loss 0.9, its run measured 0.5",
        ),
        (
            {"failure": "ValueError: no config.json"},
            "could not evaluate what it had saved (ValueError: no config.json)",
        ),
    ],
)
def test_weights_that_are_not_what_the_run_measured(recorded: Any, evaluation: dict[str, Any], says: str) -> None:
    session = recorded.session(runs=2)
    run_id = recorded.children(session)[0]
    recorded.weights(run_id)
    version = register_version(recorded.client, recorded.model, session, run_id, evaluation=evaluation)
    assert says in refusal(run(recorded, "gate", recorded.model, version))


def test_a_version_is_sealed_once(recorded: Any) -> None:
    version = recorded.version(runs=2)
    swap(files_of(recorded, version))
    with pytest.raises(UsageError, match="sealed already, in row"):
        seal_version(recorded.client, recorded.model, version)
    rows = registry_of(recorded.client).rows(recorded.model)[1:]  # the first: its session
    assert [row.kind for row in rows] == [Kind.SEAL]
    assert rows[0].facts["files"].keys() == {"model.safetensors"}


def test_a_seal_that_a_stranger_signed_is_none(recorded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = recorded.version(runs=2)
    monkeypatch.setenv("CANARY_KEYS", str(tmp_path / "keys"))
    said = refusal(run(recorded, "bless", recorded.model, version, "--reason", "x"))
    assert " of the ledger" in said  # its seal, which says its tier too: whichever is asked for first
    assert "it is signed with key " in said


def test_audit_verify_names_a_file_that_changed_under_a_champion(recorded: Any) -> None:
    version = recorded.version(runs=2)
    assert run(recorded, "gate", recorded.model, version).exit_code == 0
    swap(files_of(recorded, version))
    said = run(recorded, "audit", "verify").output
    assert f"version {version} of {recorded.model!r}: model.safetensors changed since it was sealed" in said


def test_without_a_ledger_the_tags_hold_the_seal(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canary_mlflow.registry.backends.is_guarded", lambda uri: False)
    monkeypatch.setattr("canary_mlflow.registry.guard.store.GuardedStore.refuse_reserved", lambda *words: None)
    version = recorded.version(runs=2)
    assert recorded.tags(version)["canary.seal"].startswith("1 files, sha256:")
    swap(files_of(recorded, version))
    said = refusal(run(recorded, "gate", recorded.model, version))
    assert "its files changed since it was sealed" in said


# What loading its files can run, and what is left of the champion's.


def sealed_with(it: Any, **files: bytes) -> str:
    """A version with these files beside its weights; `__` in a name stands for a dot."""
    session = it.session()
    run_id = it.children(session)[0]
    it.weights(run_id)
    for name, content in files.items():
        it.weights(run_id, content, name.replace("__", "."))
    return str(register_version(it.client, it.model, session, run_id))


TRAINERS = {"training_args__bin": b"\x80\x02.", "optimizer__pt": b"PK", "rng_state_0__pth": b"PK"}
CODE: dict[str, tuple[dict[str, bytes], str]] = {
    "a pickle of weights": ({"pytorch_model__bin": b"PK"}, "pytorch_model.bin (pickle)"),
    "a pickle that MLflow loads": ({"python_model__PKL": b"\x80\x04."}, "python_model.PKL (pickle)"),
    "auto_map": ({"config__json": b'{"auto_map": {"AutoModel": "them/evil--m.M"}}'}, "config.json (auto_map)"),
    "a tokenizer's": ({"tokenizer_config__json": b'{"auto_map": ["t.T", null]}'}, "tokenizer_config.json (auto_map)"),
    "a module": ({"modeling_x__py": b"import os", "optimizer__py": b""}, "modeling_x.py, optimizer.py"),
    "a configuration that is none": ({"config__json": b"{"}, "config.json (cannot be read)"),
}


@pytest.mark.parametrize("what", CODE)
def test_code_beside_sound_weights_is_named_and_refused_where_the_policy_says_so(
    guarded: Any, what: str, tmp_path: Path
) -> None:
    files, said = CODE[what]
    version = sealed_with(guarded, **files)
    own = tmp_path / "careful.yaml"
    own.write_text("base: smoke\nname: careful\nrefuse_code: true\n")
    held = run(guarded, "gate", guarded.model, version, "--policy", str(own))
    assert (held.exit_code, guarded.champion()) == (0, "1"), held.output
    words = " ".join(held.output.split())
    assert f"Version {version} is not promoted: its policy refuses files that can run code when they are" in words
    assert f"loading its files can run code: {said}" in words
    with pytest.raises(MlflowException, match="its verdict is PASS, and it is not promoted: its policy refuses files"):
        guarded.client.set_registered_model_alias(guarded.model, "champion", version)
    done = run(guarded, "gate", guarded.model, version)
    assert (done.exit_code, guarded.champion()) == (0, version), done.output
    assert f"loading its files can run code: {said}" in " ".join(done.output.split())
    assert f"loading its files can run code: {said}" in " ".join(guarded.description(version).split())


def test_a_first_version_with_code_stays_out_where_the_policy_says_so(recorded: Any, tmp_path: Path) -> None:
    version = sealed_with(recorded, modeling_x__py=b"")
    own = tmp_path / "careful.yaml"
    own.write_text("base: smoke\nname: careful\nrefuse_code: true\n")
    held = run(recorded, "gate", recorded.model, version, "--policy", str(own))
    assert (held.exit_code, recorded.champion()) == (3, None), held.output
    assert "Version 1 is not promoted: its policy refuses files that can run code" in " ".join(held.output.split())


def test_what_only_a_resumed_training_reads_is_named_and_never_refused(guarded: Any, tmp_path: Path) -> None:
    version = sealed_with(guarded, **TRAINERS, config__json=b'{"auto_map": {}, "vocab_size": 3}')
    own = tmp_path / "careful.yaml"
    own.write_text("base: smoke\nname: careful\nrefuse_code: true\n")
    done = run(guarded, "gate", guarded.model, version, "--policy", str(own))
    assert (done.exit_code, guarded.champion()) == (0, version), done.output
    words = " ".join(done.output.split())
    assert "only a resumed training reads: optimizer.pt (pickle), rng_state_0.pth (pickle), training_args.bin" in words
    assert "can run code" not in words


def test_a_version_of_weights_alone_has_no_word_on_code_or_the_champion(guarded: Any) -> None:
    done = run(guarded, "gate", guarded.model, sealed_with(guarded, config__json=b'{"vocab_size": 3}'))
    assert done.exit_code == 0, done.output
    for word in ("run code", "resumed training", "the champion's files"):
        assert word not in done.output


def test_a_champion_whose_files_are_missing_is_noted(guarded: Any) -> None:
    """Its verdict needs none of them, but nobody can load it, or roll back to it."""
    for file in files_of(guarded, "1").rglob("*.safetensors"):
        file.unlink()
    done = run(guarded, "gate", guarded.model, guarded.version(slower=2.0))
    assert done.exit_code == 1, done.output
    words = " ".join(done.output.split())
    assert (
        "the champion's files, version 1: all missing (model.safetensors); the verdict compares runs and stands"
        in words
    )
    assert f"see canary verify-weights models:/{guarded.model}/1" in words
    assert run(guarded, "verify-weights", f"models:/{guarded.model}/1").exit_code == 1
