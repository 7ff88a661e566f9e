"""What keeps a version from being champion although its runs showed no harm: every command, on a real SQLite store."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import forking
import pytest
from click.testing import CliRunner, Result
from flask import Flask
from mlflow.exceptions import MlflowException
from mlflow.projects.utils import load_project
from workplace import ROOT

from canary_mlflow.cli import canary
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.server.routes import add_routes

pytestmark = pytest.mark.usefixtures("unpublished")

LOAD = {"canary.not_promotable": "fault slow_step_from_n"}
MARK = "its runs were made with fault slow_step_from_n"


def run(guarded: Any, *words: str, **environment: str) -> Result:
    return CliRunner().invoke(canary, [*words, "--tracking-uri", guarded.uri], env=environment)


def gated(guarded: Any, version: str, *words: str, **environment: str) -> Result:
    return run(guarded, "gate", guarded.model, version, *words, **environment)


def says(result: Result) -> str:
    return " ".join(result.output.split())


def rows(guarded: Any) -> list[Any]:
    return registry_of(guarded.client).rows(guarded.model)


# A fault, a profiler: never.


def test_a_version_made_with_a_load_is_judged_and_marked_and_never_promoted(guarded: Any) -> None:
    second = guarded.version(tags=LOAD)
    done = gated(guarded, second, "--promote")
    assert (done.exit_code, guarded.champion()) == (0, "1"), done.output
    assert done.output.startswith("PASS")
    assert f"The champion stays version 1. Version 2 stays out: {MARK}" in says(done)
    tags = guarded.tags(second)
    assert (tags["canary.verdict"], tags["canary.not_promotable"]) == ("PASS", MARK)
    assert (rows(guarded)[-1].grants, rows(guarded)[-1].moves) == (False, False)
    with pytest.raises(MlflowException, match=f"its verdict is PASS, and it is not promoted: {MARK}"):
        guarded.client.set_registered_model_alias(guarded.model, "champion", second)


@pytest.mark.parametrize(
    "words", [("bless",), ("bless", "--despite-block"), ("override",), ("override", "--alias", "anchor")]
)
def test_nobody_promotes_it_by_hand(guarded: Any, words: tuple[str, ...]) -> None:
    second = guarded.version(tags=LOAD)
    before = rows(guarded)
    command, *options = words
    done = run(guarded, command, guarded.model, second, "--reason", "why not", *options)
    assert (done.exit_code, guarded.champion(), rows(guarded)) == (2, "1", before), done.output
    assert done.output.strip().count("\n") == 0
    assert f"version 2 of '{guarded.model}': its runs were made with fault slow_step_from_n" in done.output


@pytest.mark.parametrize("gone", ["tag", "runs"])
def test_a_version_that_was_marked_stays_out_whatever_becomes_of_its_runs(guarded: Any, gone: str) -> None:
    session = guarded.session(tags=LOAD)
    second = guarded.register(session)
    assert gated(guarded, second).exit_code == 0
    for run_id in guarded.children(session):
        if gone == "tag":
            guarded.client.delete_tag(run_id, "canary.not_promotable")
        else:
            guarded.client.delete_run(run_id)
    refused = gated(guarded, second)
    what = "its metrics or facts changed since row" if gone == "tag" else "deleted; row"
    assert (refused.exit_code, what in says(refused)) == (2, True), refused.output
    done = run(guarded, "override", guarded.model, second, "--reason", "why not")
    assert "slow_step_from_n" in says(done) or gone == "runs", done.output
    assert guarded.champion() == "1"


def test_it_is_no_first_champion_either(recorded: Any) -> None:
    first = recorded.version(tags=LOAD)
    done = gated(recorded, first)
    assert (done.exit_code, recorded.champion()) == (3, None), done.output
    assert MARK in says(done)
    assert recorded.tags(first)["canary.verdict"] == "INCONCLUSIVE"
    assert gated(recorded, recorded.version()).exit_code == 0
    assert recorded.champion() == "2"


def test_one_such_run_is_enough_and_it_is_no_baseline(guarded: Any) -> None:
    struck = guarded.session()
    guarded.client.set_tag(guarded.children(struck)[0], "canary.not_promotable", "a profiler")
    done = gated(guarded, guarded.register(struck))
    assert guarded.champion() == "1"
    assert "its runs were made with a profiler" in says(done)
    beside = run(guarded, "compare", struck, f"{guarded.model}/1", "--json")
    notes = json.loads(beside.stdout)["verdict"]["notes"]
    assert sum("left out of the baseline" in note and "it was made with a profiler" in note for note in notes) == 1


def test_what_blocks_with_a_load_is_told_no_way_to_promote_it(guarded: Any) -> None:
    done = gated(guarded, guarded.version(nan_at=20, tags=LOAD))
    assert done.exit_code == 1, done.output
    assert "canary bless" not in done.output


# Older than the champion: only where somebody says so.


@pytest.fixture
def overtaken(guarded: Any) -> Any:
    """Version 2 passed and was champion, version 3 replaced it."""
    for _ in range(2):
        assert gated(guarded, guarded.version()).exit_code == 0
    assert guarded.champion() == "3"
    return guarded


def test_judging_an_older_version_again_writes_nothing(overtaken: Any) -> None:
    before = (overtaken.tags("2"), overtaken.description("2"), len(rows(overtaken)))
    done = gated(overtaken, "2")
    assert (done.exit_code, overtaken.champion()) == (0, "3"), done.output
    assert (overtaken.tags("2"), overtaken.description("2"), len(rows(overtaken))) == before
    told = says(done)
    assert "The champion stays version 3. Version 2 is not promoted: version 3, the champion, is newer." in told
    assert f"To promote it all the same: canary gate {overtaken.model} 2 --promote (Judged again, nothing was" in told


def test_an_older_version_is_promoted_where_somebody_says_so(overtaken: Any) -> None:
    assert gated(overtaken, "2", CANARY_PROMOTE="false").exit_code == 0
    assert overtaken.champion() == "3"
    assert gated(overtaken, "2", "--promote").exit_code == 0
    assert overtaken.champion() == "2"


@pytest.mark.parametrize(
    ("given", "champion"), [({}, "3"), pytest.param({"promote": "true"}, "2", marks=pytest.mark.full)]
)
def test_the_project_promotes_no_older_version_unless_it_is_told_to(
    overtaken: Any, given: dict[str, str], champion: str
) -> None:
    """The command of `mlflow run . -e gate`."""
    parameters = {"model_name": overtaken.model, "version": "2", **given}
    command = load_project(str(ROOT)).get_entry_point("gate").compute_command(parameters, None)
    path = f"{Path(forking.python()).parent}{os.pathsep}{os.environ['PATH']}"
    place = {**os.environ, "PATH": path, "MLFLOW_TRACKING_URI": overtaken.uri}
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=place, capture_output=True, text=True, check=False)
    assert (done.returncode, overtaken.champion()) == (0, champion), done.stderr


def test_a_first_verdict_on_an_older_version_is_kept_and_moves_nothing(guarded: Any) -> None:
    """As of a session that ended after one that began later."""
    second, third = guarded.version(), guarded.version()
    gated(guarded, third)
    done = gated(guarded, second)
    assert (done.exit_code, guarded.champion(), guarded.tags(second)["canary.verdict"]) == (0, third, "PASS")
    assert (rows(guarded)[-1].grants, rows(guarded)[-1].moves) == (True, False)


def test_the_server_promotes_no_older_version_unless_it_is_told_to(
    overtaken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", overtaken.uri)
    monkeypatch.setenv("_MLFLOW_SERVER_REGISTRY_STORE", f"canary+{overtaken.uri}")
    app = Flask("server")
    add_routes(app, authenticated=False)

    def judged(**asked: Any) -> Any:
        body = {"model": overtaken.model, "version": "2", **asked}
        return app.test_client().post("/api/2.0/canary/verdicts", json=body).get_json()["decision"]

    before = len(rows(overtaken))
    looked = judged()
    assert (looked["decision"], looked["promoted"], looked["dry_run"]) == ("PASS", False, True)
    assert (overtaken.champion(), len(rows(overtaken))) == ("3", before)
    assert judged(promote=True)["promoted"] is True
    assert overtaken.champion() == "2"


# Too few runs.


@pytest.mark.parametrize("runs", [1, 2])
def test_a_version_with_fewer_runs_than_the_champion_is_not_promoted(guarded: Any, runs: int) -> None:
    second = guarded.version(runs=runs)
    done = gated(guarded, second)
    assert (done.exit_code, guarded.champion(), guarded.tags(second)["canary.verdict"]) == (0, "1", "PASS")
    told = says(done)
    assert f"Version 2 is not promoted: it has {runs} run{'s' * (runs > 1)}, a champion needs 3, as version 1" in told
    assert f"Add them: canary gate {guarded.model} 2 --top-up, or train it again with repeats=3." in told
    with pytest.raises(MlflowException, match="a champion needs 3, as version 1 has"):
        guarded.client.set_registered_model_alias(guarded.model, "champion", second)


def test_a_first_version_with_fewer_runs_than_a_baseline_needs_is_no_champion(recorded: Any) -> None:
    done = gated(recorded, recorded.version(runs=1))
    assert (done.exit_code, recorded.champion()) == (3, None), done.output
    assert "There is still no champion. Version 1 is not promoted: it has 1 run, a champion needs 2." in says(done)
    assert gated(recorded, recorded.version(runs=2)).exit_code == 0
    assert recorded.champion() == "2"
