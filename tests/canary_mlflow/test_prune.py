"""canary prune: what nobody needs goes with a signed row, what somebody needs stays, and the ledger still holds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow.cli
import pytest
from click.testing import CliRunner, Result
from read_only import read_only, sealed
from tiny_weights import safetensors

from canary_mlflow.cli import canary
from canary_mlflow.errors import StoreError
from canary_mlflow.ledger.chain import Kind, Record
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.acts.by_hand import bless
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.registry.pruning import pruning
from canary_mlflow.tags import PROFILE_OF

OTHERS = ("samples.jsonl", "profile/trace.json.gz")
STAYS = ("profile/profile.json", "metrics.json")


def run(it: Any, *words: str) -> Result:
    return CliRunner().invoke(canary, [*words, "--tracking-uri", it.uri])


def prune(it: Any, *words: str) -> Result:
    return run(it, "prune", "--model", it.model, *words)


def fates(result: Result) -> dict[str, tuple[bool, str]]:
    """Version → whether it goes, and why."""
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["fates"]
    return {one["version"]: (one["goes"], one["why"]) for one in found}


def audit(it: Any) -> list[str]:
    """What `audit verify` finds about the model: other tests damage theirs in the same store."""
    return [line for line in run(it, "audit", "verify").output.splitlines() if repr(it.model) in line]


def session_of(it: Any, version: str) -> str:
    return str(it.tags(version)["canary.session_id"])


def artifacts(it: Any, version: str) -> set[str]:
    """The files below the session of a version, and below its runs."""
    runs = [session_of(it, version), *it.children(session_of(it, version))]
    roots = [Path(it.client.get_run(run_id).info.artifact_uri.removeprefix("file://")) for run_id in runs]
    return {file.relative_to(root).as_posix() for root in roots for file in root.rglob("*") if file.is_file()}


def rows(it: Any, kind: Kind = Kind.PRUNE) -> list[Any]:
    return registry_of(it.client).rows(it.model, kind=kind)


def champions(it: Any, number: int) -> None:
    """So many champions one after the other, each with samples and a trace."""
    for _ in range(number):
        version = it.version(runs=2)
        for name in (*OTHERS, *STAYS):
            it.client.log_text(it.children(session_of(it, version))[0], "text " * 50, name)
        bless(it.client, it.model, version, "for the test")


def blocked(it: Any) -> str:
    version = str(it.version(slower=2.0))
    assert gate(it.client, it.model, version, load_policy("smoke")).word == "BLOCK"
    return version


def test_it_says_what_goes_and_why_and_what_stays_and_changes_nothing(recorded: Any) -> None:
    champions(recorded, 4)
    block, waits = blocked(recorded), str(recorded.version(runs=1))
    open_ = str(recorded.version(without=("perf/step_cost", "perf/step_time", "perf/step_cpu_time")))
    assert gate(recorded.client, recorded.model, open_, load_policy("smoke")).word == "INCONCLUSIVE"
    before = [artifacts(recorded, version) for version in ("1", block)]
    found = fates(prune(recorded, "--json"))
    assert found == {
        "1": (True, "former champion, before the 2 that stay"),
        "2": (False, "former champion; canary rollback may return to it"),
        "3": (False, "former champion; canary rollback may return to it"),
        "4": (False, "champion"),
        block: (True, "BLOCK"),
        waits: (False, "not judged yet"),
        open_: (False, "INCONCLUSIVE: not decided"),
    }
    said = prune(recorded).output
    assert f"  goes   version {block}" in said
    assert "2, 3" in said
    assert " files would go. Nothing was changed" in said
    assert (rows(recorded), [artifacts(recorded, version) for version in ("1", block)]) == ([], before)


def test_what_goes_is_gone_what_stays_is_whole_and_the_ledger_holds(recorded: Any) -> None:
    champions(recorded, 4)
    block = blocked(recorded)
    kept = {version: artifacts(recorded, version) for version in "234"}
    numbers = recorded.client.get_metric_history(recorded.children(session_of(recorded, "1"))[0], "stability/loss")
    done = prune(recorded, "--yes")
    assert " in 4 files removed." in done.output, done.output
    assert artifacts(recorded, "1") == set(STAYS)
    assert not {name for name in artifacts(recorded, block) if name.endswith(".safetensors")}
    assert {version: artifacts(recorded, version) for version in "234"} == kept
    run_id = recorded.children(session_of(recorded, "1"))[0]
    assert len(recorded.client.get_metric_history(run_id, "stability/loss")) == len(numbers)
    assert audit(recorded) == []
    row = next(row for row in rows(recorded) if row.version == 1)
    assert row.facts["files"] == rows(recorded, Kind.SEAL)[0].facts["files"]
    assert sorted(row.facts["others"]) == sorted(f"{run_id}/{name}" for name in OTHERS)
    assert recorded.tags("1")["canary.pruned_by"] == row.facts["actor"]
    assert "Nothing to remove." in prune(recorded, "--yes").output
    assert len(rows(recorded)) == 2


ACTS: tuple[Callable[[str], list[str]], ...] = (
    lambda model: ["gate", model, "1"],
    lambda model: ["gate", model, "1", "--dry-run"],
    lambda model: ["bless", model, "1", "--reason", "x"],
    lambda model: ["override", model, "1", "--reason", "x", "--without-weights"],
    lambda model: ["rollback", model, "--reason", "x"],
    lambda model: ["verify-weights", f"models:/{model}/1"],
)


def test_a_pruned_version_never_becomes_champion(recorded: Any) -> None:
    champions(recorded, 3)
    assert prune(recorded, "--yes", "--keep", "1").exit_code == 0
    assert run(recorded, "rollback", recorded.model, "--reason", "back to the second").exit_code == 0
    (row,) = rows(recorded)
    says = f"version 1 of {recorded.model!r}: pruned {row.facts['time'][:10]} by {row.facts['actor']}"
    for words in ACTS:
        refused = run(recorded, *words(recorded.model))
        assert (refused.exit_code, says in refused.stderr) == (2, True), refused.output
        assert len(refused.stderr.splitlines()) == 1
    with pytest.raises(mlflow.MlflowException, match=r"version 1: pruned .*row \d+ of the ledger") as moved:
        recorded.client.set_registered_model_alias(recorded.model, "champion", "1")
    assert moved.value.error_code == "PERMISSION_DENIED"
    assert recorded.champion() == "2"
    assert audit(recorded) == []


def weights(it: Any, version: str) -> Path:
    return Path(str(it.client.get_model_version(it.model, version).source).removeprefix("file://"), "model.safetensors")


def test_a_file_that_is_missing_or_changed_without_a_row_is_named_as_before(recorded: Any) -> None:
    champions(recorded, 4)
    weights(recorded, "2").unlink()
    weights(recorded, "1").write_bytes(safetensors() + b"more")
    said = f"version 1 of {recorded.model!r}: model.safetensors changed since it was sealed"
    stays = prune(recorded, "--yes")
    assert (stays.exit_code, "stays  version 1" in stays.output, said in stays.output) == (0, True, True)
    assert weights(recorded, "1").exists()
    found = "\n".join(audit(recorded))
    assert said in found
    assert f"version 2 of {recorded.model!r}: model.safetensors is gone since it was sealed" in found
    assert rows(recorded) == []


def test_a_file_that_turns_up_again_with_another_content_is_named(recorded: Any) -> None:
    champions(recorded, 4)
    assert prune(recorded, "--yes").exit_code == 0
    weights(recorded, "1").parent.mkdir(exist_ok=True)
    weights(recorded, "1").write_bytes(b"another")
    assert "model.safetensors changed since it was sealed" in "\n".join(audit(recorded))
    assert "model.safetensors changed since row" in prune(recorded, "--yes").output
    assert weights(recorded, "1").exists()


def test_what_was_interrupted_between_the_row_and_the_removal_is_finished(
    recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    champions(recorded, 4)
    with monkeypatch.context() as patch:
        patch.setattr(pruning, "remove", lambda *words: os._exit(9))  # as kill -9 would end it
        child = os.fork()
        if not child:
            prune(recorded, "--yes")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert weights(recorded, "1").exists()
    assert audit(recorded) == []
    (row,) = rows(recorded)
    assert f"given up in row {row.seq} of the ledger, to be finished" in prune(recorded).output
    assert prune(recorded, "--yes").exit_code == 0
    assert not weights(recorded, "1").exists()
    assert (rows(recorded), audit(recorded)) == ([row], [])


def test_a_store_that_deletes_nothing_is_told_in_a_line_and_no_row_is_written(recorded: Any, tmp_path: Path) -> None:
    with read_only(tmp_path) as folder:
        own = recorded.client.create_experiment(f"kept {recorded.model}", artifact_location=str(folder))
        recorded.experiment = own
        champions(recorded, 4)
        for place in [*folder.rglob("*"), folder] if os.getuid() else [folder]:
            if place.is_dir():
                sealed(place)
        refused = prune(recorded, "--yes")
        assert refused.exit_code == 4
        assert refused.stderr.count("\n") == 1
        assert "it is read-only; expected an artifact store that lists and deletes files" in refused.stderr
        assert (rows(recorded), weights(recorded, "1").exists()) == ([], True)
        assert "canary.pruned" not in recorded.tags("1")


def test_mlflow_gc_afterwards_alarms_nobody(recorded: Any) -> None:
    own = recorded.client.create_experiment(f"gone {recorded.model}")
    home, recorded.experiment = recorded.experiment, own
    champions(recorded, 2)
    recorded.experiment = home
    champions(recorded, 1)
    assert prune(recorded, "--yes", "--keep", "1").exit_code == 0
    sessions = {version: session_of(recorded, version) for version in "12"}
    for session in (sessions["1"],):
        for run_id in (session, *recorded_children(recorded, own, session)):
            recorded.client.delete_run(run_id)
    collected = CliRunner().invoke(
        mlflow.cli.cli, ["gc", "--backend-store-uri", recorded.uri, "--tracking-uri", recorded.uri]
    )
    assert collected.exit_code == 0, collected.output
    assert audit(recorded) == []
    assert "Nothing to remove." in prune(recorded, "--keep", "1").output
    passed = run(recorded, "gate", recorded.model, recorded.version())
    assert passed.exit_code == 0, passed.output
    gone = recorded_children(recorded, own, sessions["2"])[0]
    recorded.client.delete_run(gone)
    assert f"run {gone} is gone" in "\n".join(audit(recorded))  # of a version that nobody pruned


def recorded_children(it: Any, experiment: str, session: str) -> list[str]:
    found = it.client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{session}'")
    return [run.info.run_id for run in found]


def test_files_of_a_session_that_runs_or_that_another_version_has_stay(recorded: Any) -> None:
    champions(recorded, 4)
    recorded.client.update_run(recorded.children(session_of(recorded, "1"))[0], status="RUNNING")
    assert fates(prune(recorded, "--json"))["1"][1].startswith("its session still runs (")
    recorded.client.set_terminated(recorded.children(session_of(recorded, "1"))[0])
    assert fates(prune(recorded, "--json"))["1"][0]
    copy = recorded.client.copy_model_version(f"models:/{recorded.model}/1", f"{recorded.model}-copy")
    goes, why = fates(prune(recorded, "--json"))["1"]
    assert (goes, why) == (False, f"version {copy.version} of {copy.name} has files of the same session")
    recorded.client.delete_model_version(copy.name, copy.version)
    assert fates(prune(recorded, "--json", "--older-than", "1"))["1"] == (False, "younger than 1 days")


def test_a_version_that_becomes_champion_meanwhile_keeps_its_files(
    recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    champions(recorded, 1)
    block = blocked(recorded)
    look = pruning.refuse_undeletable

    def meanwhile(*words: Any) -> None:
        look(*words)
        done = run(recorded, "override", recorded.model, block, "--reason", "it is meant")
        assert done.exit_code == 0, done.output

    monkeypatch.setattr(pruning, "refuse_undeletable", meanwhile)
    refused = prune(recorded, "--yes")
    assert refused.exit_code == 4
    assert f"files of {recorded.model!r}, version {block}: it is champion now; nothing was removed" in refused.stderr
    assert (rows(recorded), weights(recorded, block).exists()) == ([], True)


def test_only_operators_prune(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    champions(recorded, 4)
    monkeypatch.setattr("canary_mlflow.registry.guard.store.Guard.operators", ("ann",))
    refused = prune(recorded, "--yes")
    assert refused.exit_code == 4
    assert f"files of version 1 of {recorded.model!r}: " in refused.stderr
    assert "is not among those who may (ann)" in refused.stderr
    assert (rows(recorded), weights(recorded, "1").exists()) == ([], True)


def test_without_a_ledger_the_tags_say_it(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    champions(recorded, 4)
    monkeypatch.setattr("canary_mlflow.registry.backends.is_guarded", lambda uri: False)
    monkeypatch.setattr("canary_mlflow.registry.guard.store.GuardedStore.refuse_reserved", lambda *words: None)
    assert fates(prune(recorded, "--json"))["1"][0]
    assert prune(recorded, "--yes").exit_code == 0
    assert not weights(recorded, "1").exists()
    refused = run(recorded, "bless", recorded.model, "1", "--reason", "x")
    assert (refused.exit_code, "pruned 20" in refused.stderr) == (2, True)


def test_a_bucket_that_keeps_what_it_is_told_to_delete_is_found_out(recorded: Any, tmp_path: Path) -> None:
    """S3 answers 200 to a deletion that its rights forbid, and MLflow does not look at what it says."""
    from mlflow.store.artifact.artifact_repository_registry import _artifact_repository_registry
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    from canary_mlflow.tracking.reading.large_files import find_large, refuse_undeletable

    class Bucket(LocalArtifactRepository):
        def __init__(self, artifact_uri: str, *words: Any, **named: Any) -> None:
            super().__init__(str(tmp_path))

        def delete_artifacts(self, artifact_path: str | None = None) -> None:
            pass

    (tmp_path / "model" / "deep").mkdir(parents=True)
    (tmp_path / "model" / "deep" / "model.safetensors").write_bytes(safetensors())
    _artifact_repository_registry.register("keeps", Bucket)
    files = find_large("r", "keeps://bucket/r", "")
    assert [one.path for one in files] == ["model/deep/model.safetensors"]
    with pytest.raises(StoreError, match="keeps://bucket/r: it deletes nothing; expected"):
        refuse_undeletable(files, "")


def test_rows_that_were_written_about_sessions_before_are_shown_and_hold(recorded: Any) -> None:
    champions(recorded, 1)
    facts = {"session": "0" * 32, "runs": {"1" * 32: "2" * 64}, "files": {}, "actor": "ann", "reason": "PASS"}
    named = {"model": recorded.model, "version": 0, "version_created": 0, "alias": "", "workspace": "default"}
    guard = registry_of(recorded.client)
    assert guard is not None
    guard.append(Record(kind=Kind.PRUNE, word="pruned", grants=False, moves=False, facts=facts, **named))
    assert audit(recorded) == []
    assert f"session {'0' * 32}, by ann" in run(recorded, "audit", "log", recorded.model).output


@pytest.mark.parametrize("claim", ["mlflow.parentRunId", PROFILE_OF])
def test_a_run_of_the_champion_that_somebody_puts_into_another_session_is_not_pruned_with_it(
    recorded: Any, claim: str
) -> None:
    champions(recorded, 1)
    block = blocked(recorded)
    moved = recorded.children(session_of(recorded, "1"))[1]
    recorded.client.log_text(moved, "text", OTHERS[0])
    recorded.client.set_tag(moved, claim, session_of(recorded, block))
    done = prune(recorded, "--yes")
    assert "gone   version" in done.output, done.output
    assert moved not in "".join(row.body for row in rows(recorded))
    assert [item.path for item in recorded.client.list_artifacts(moved)] == [OTHERS[0]]
    recorded.client.set_tag(moved, "mlflow.parentRunId", session_of(recorded, "1"))
    recorded.client.delete_run(moved)
    assert f"run {moved} is gone" in "\n".join(audit(recorded))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--model", "no-such-model"), "model 'no-such-model': not in the registry; models:"),
        (("--keep", "0"), "0 is not in the range x>=1"),
        (("--older-than", "-1"), "-1.0 is not in the range x>=0"),
    ],
)
def test_what_nobody_can_mean_is_refused_in_a_line(shared: Any, words: tuple[str, ...], says: str) -> None:
    refused = run(shared, "prune", *words)
    assert (refused.exit_code, refused.stdout, says in refused.stderr) == (2, "", True), refused.output
    assert len(refused.stderr.splitlines()) == 1


def test_without_a_model_it_is_about_all_that_came_through_here(recorded: Any) -> None:
    recorded.client.create_registered_model(f"{recorded.model}-plain")
    recorded.client.create_model_version(f"{recorded.model}-plain", "/nowhere")
    recorded.version(runs=1)
    said = run(recorded, "prune").output
    assert f"\n{recorded.model}\n" in f"\n{said}"
    assert f"{recorded.model}-plain" not in said
