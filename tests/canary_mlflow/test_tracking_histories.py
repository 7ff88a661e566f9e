"""From MLflow to runs of series: in order, true to NaN and Inf, whichever way they are read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from mlflow.entities import Metric
from servers import Server

from canary_mlflow.errors import NoSuchModel, NoSuchRun, NoSuchVersion
from canary_mlflow.tracking.delivery.recorder import Recorder
from canary_mlflow.tracking.reading import histories
from canary_mlflow.tracking.reading.database import points_over
from canary_mlflow.tracking.reading.histories import read_runs, read_version, session_runs
from canary_mlflow.tracking.stores.store import prepare_store

NAN, INF = math.nan, math.inf
WRITTEN = {1: 3.0, 2: NAN, 3: INF, 4: -INF, 5: 1.0}


@pytest.fixture
def run_id(shared: Any) -> str:
    """A run whose points were written out of order, one of them twice."""
    run: str = shared.client.create_run(
        shared.experiment,
        tags={
            "canary.role": "run",
            "canary.seed": "7",
            "canary.completed": "true",
            "canary.learned": "false",
            "canary.learned_reason": "flat",
            "canary.nan_steps": "1",
            "canary.last_step": "5",
            "canary.workload.algo": "dpo",
            "canary.hardware.backend": "cpu",
            "canary.env.torch": "2",
        },
    ).info.run_id
    points = [Metric("stability/loss", value, 1000 + step, step) for step, value in WRITTEN.items()]
    points.append(Metric("stability/loss", 99.0, 10, 1))  # an older write of step 1
    points += [Metric("trl/logits/chosen", 0.5, 1001, 1), Metric("perf/step_time", 0.1, 1001, 1)]
    shared.client.log_batch(run, metrics=points[::-1])
    return run


def check(found: Any) -> None:
    loss = found.series["loss"]
    np.testing.assert_array_equal(loss.steps, [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(loss.values, list(WRITTEN.values()))
    assert found.series["trl/logits/chosen"].values.tolist() == [0.5]


def test_series_come_sorted_with_the_last_write_of_a_step_and_true_infinities(shared: Any, run_id: str) -> None:
    (found,) = read_runs(shared.client, [run_id])
    check(found)
    assert (found.seed, found.completed, found.learned, found.learned_reason) == (7, True, False, "flat")
    assert (found.nan_steps, found.inf_steps, found.last_step, found.failure) == (1, 0, 5, "")
    assert dict(found.workload) == {"algo": "dpo"}
    assert dict(found.hardware) == {"backend": "cpu"}
    assert dict(found.environment) == {"torch": "2"}


def test_reading_a_run_does_not_take_longer_the_more_runs_a_store_has(shared: Any, run_id: str) -> None:
    asked: list[tuple[str, Any]] = []
    engine = sa.create_engine(shared.uri)
    sa.event.listen(engine, "before_cursor_execute", lambda *said: asked.append((said[2], said[3])))
    with engine.connect() as connection:
        points_over(connection, {run_id: ["stability/loss"]})
        ((statement, values),) = asked
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
    engine.dispose()
    assert [row for row in plan if "index_metrics_run_uuid_key_step (run_uuid=? AND key=?)" in row[-1]], plan


def test_mlflows_own_calls_give_the_same(shared: Any, run_id: str) -> None:
    keys = {run_id: ["stability/loss"]}
    fast = histories.read_points(shared.client, keys)[run_id]["stability/loss"]
    slow = np.array([point[2:] for point in histories._one_by_one(shared.client, keys)])
    assert sorted(map(repr, fast.tolist())) == sorted(map(repr, slow.tolist()))


def test_only_what_is_asked_for_is_read(shared: Any, run_id: str) -> None:
    (found,) = read_runs(shared.client, [run_id], ["step_time", "kl"])
    assert set(found.series) == {"step_time"}
    (none,) = read_runs(shared.client, [run_id], [])
    assert not none.series


def test_a_session_gives_its_runs_and_a_lone_run_itself(shared: Any, usual_session: str, run_id: str) -> None:
    runs = session_runs(shared.client, usual_session, ["loss"])
    assert [run.seed for run in runs] == [0, 1, 2]
    assert {run.session for run in runs} == {usual_session}
    assert all(len(run.series["loss"].values) == 40 for run in runs)
    assert [run.run_id for run in session_runs(shared.client, run_id)] == [run_id]


def test_a_version_brings_its_evidence(recorded: Any, usual_session: str) -> None:
    number = recorded.register(usual_session)
    version = read_version(recorded.client, recorded.model, number, ["loss"])
    assert (version.model, version.version, len(version.runs)) == (recorded.model, number, 3)
    with pytest.raises(NoSuchVersion):
        read_version(recorded.client, recorded.model, "99")
    with pytest.raises(NoSuchModel):
        read_version(recorded.client, "nobody", "1")
    with pytest.raises(NoSuchRun):
        read_runs(recorded.client, ["f" * 32])


@pytest.fixture(scope="module")
def server(shared: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real tracking server on the loopback, over the tests' store."""
    with Server(shared.uri, tmp_path_factory.mktemp("server")) as running:
        yield running


def test_a_server_takes_and_gives_the_same_and_its_death_is_counted(
    shared: Any, run_id: str, server: Server, tmp_path: Path
) -> None:
    client = prepare_store(server.uri)
    (found,) = read_runs(client, [run_id])
    check(found)
    assert list(histories._from_server(client, {run_id: ["stability/loss"]}))

    mine = client.create_run(shared.experiment).info.run_id
    recorder = Recorder(client, mine, tmp_path)
    for step in range(1, 301):
        recorder.put(step, {"loss": 1 / step, "grad_norm": NAN, "trl/odd<key>": float(step)})
    assert recorder.close() == 0
    (through_server,) = read_runs(client, [mine])
    (from_database,) = read_runs(shared.client, [mine])
    for run in (through_server, from_database):
        assert {name: len(series.steps) for name, series in run.series.items()} == {
            "loss": 300,
            "grad_norm": 300,
            "trl/odd_key_": 300,
        }
    assert from_database.series["loss"].same_values(through_server.series["loss"])

    server.kill()
    recorder.put(301, {"loss": 0.0, "grad_norm": 1.0})
    assert recorder.close(timeout=2.0) == 2
    assert recorder.undelivered is not None
