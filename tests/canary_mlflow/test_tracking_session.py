"""Sessions: a parent run with its children, ended whatever happens."""

from __future__ import annotations

from typing import Any

import pytest

from canary_mlflow.errors import NoSuchRun
from canary_mlflow.tracking.stores.session import (
    child_runs,
    close_run,
    create_child_run,
    finish_session,
    open_session,
)


@pytest.fixture(autouse=True)
def no_mlflow_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


def test_a_session_has_children_in_its_own_experiment(shared: Any) -> None:
    session = open_session(shared.client, "recorded", "a session", {"canary.tier": "smoke"})
    child = create_child_run(shared.client, session, "seed 7", {"canary.seed": "7"}, {"cfg/seed": 7})
    (found,) = child_runs(shared.client, session)
    assert found.info.run_id == child
    assert found.info.run_name == "seed 7"
    assert found.info.experiment_id == shared.experiment
    assert found.data.params == {"cfg/seed": "7"}
    assert found.data.tags["canary.role"] == "run"
    parent = shared.client.get_run(session)
    assert parent.data.tags["canary.role"] == "session"
    assert parent.data.tags["mlflow.user"]


def test_a_long_configuration_is_kept_in_pieces_and_its_values_cut(shared: Any) -> None:
    session = open_session(shared.client, "recorded", "long", {})
    params = {f"cfg/key{number}": "v" * 700 + (str(number) if number < 3 else "") for number in range(250)}
    child = create_child_run(shared.client, session, "long", {}, params)
    kept = shared.client.get_run(child).data.params
    assert len(kept) == 250
    assert {len(value) for value in kept.values()} == {500}
    assert len(set(kept.values())) == 4  # what differs beyond the cut differs


def test_under_mlflow_run_the_existing_run_becomes_the_session(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = shared.client.create_run(shared.experiment).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", given)
    assert open_session(shared.client, "another experiment", "named", {}) == given
    run = shared.client.get_run(given)
    assert run.info.run_name == "named"
    assert run.data.tags["canary.role"] == "session"


def test_an_unknown_run_is_named(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    with pytest.raises(NoSuchRun, match="000000"):
        open_session(shared.client, "recorded", "x", {})


def test_a_run_closed_without_failure_is_finished(shared: Any) -> None:
    run = shared.client.create_run(shared.experiment, tags={"canary.completed": "true"}).info.run_id
    close_run(shared.client, run)
    found = shared.client.get_run(run)
    assert (found.info.status, found.data.tags["canary.failure"]) == ("FINISHED", "")


def test_who_knows_better_is_believed_later_and_nothing_heals_a_failure(shared: Any) -> None:
    run = shared.client.create_run(shared.experiment).info.run_id
    close_run(shared.client, run, "interrupted", "stopped by SIGTERM")
    close_run(shared.client, run, "timeout", "not finished\nafter 5 minutes")
    close_run(shared.client, run)
    found = shared.client.get_run(run)
    assert found.info.status == "FAILED"
    assert found.data.tags["canary.failure"] == "timeout"
    assert found.data.tags["canary.failure_reason"] == "not finished after 5 minutes"
    assert found.data.tags["canary.completed"] == "false"


def test_a_finished_session_leaves_no_run_running(shared: Any) -> None:
    session = open_session(shared.client, "recorded", "cut short", {})
    child = create_child_run(shared.client, session, "cut short", {}, {})
    finish_session(shared.client, session, "FAILED", {"canary.note": "stopped"})
    assert shared.client.get_run(child).info.status == "FAILED"
    assert shared.client.get_run(child).data.tags["canary.failure"] == "interrupted"
    parent = shared.client.get_run(session)
    assert (parent.info.status, parent.data.tags["canary.note"]) == ("FAILED", "stopped")
