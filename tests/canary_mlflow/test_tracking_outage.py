"""A tracking server that hangs, dies and returns while a run goes on: no row waits for it, none is lost or doubled."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from servers import Server

from canary_mlflow.tracking.delivery.courier import Courier
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.ending import Target
from canary_mlflow.tracking.journal import Journal
from canary_mlflow.tracking.probes import Setting
from canary_mlflow.tracking.sinks import SINKS, USUAL, SinkSetting
from canary_mlflow.tracking.stores.store import prepare_store

IDLE = Setting(model=None, device="cpu", compiled=False, ranks=1, iterates=False, idle_cpu=float)
KEYS = ("loss", "grad_norm", "rewards/margins", "logps/chosen", "x")


@pytest.fixture(scope="module")
def server(shared: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(shared.uri, tmp_path_factory.mktemp("server"), app="canary") as running:
        yield running


def journal_on(client: MlflowClient, folder: Path) -> Journal:
    """A run on a recorder that sends every tenth of a second."""
    experiment = client.get_experiment_by_name("outage")
    where = experiment.experiment_id if experiment else client.create_experiment("outage")
    run_id = client.create_run(where).info.run_id
    setting = SinkSetting(folder=folder / run_id, artifacts=None, algo="dpo", batch_size=8)
    target = Target(client=client, run_id=run_id, owned=True, algo="dpo", folder=folder)
    journal = Journal(target, {}, [SINKS[name](setting) for name in USUAL])
    assert journal.recorder is not None
    journal.recorder.period = 0.1
    journal.begin(IDLE)
    return journal


def step(journal: Journal, number: int) -> None:
    journal.step_ended(number)
    journal.logged(number, {key: float(number) if key != "x" or number % 7 else float("nan") for key in KEYS})
    time.sleep(0.005)


def check_whole(client: MlflowClient, run_id: str, steps: int) -> None:
    """Every row is there exactly once, and so is the end."""
    for key in ("stability/loss", "stability/reward_margin", "trl/x"):
        history = client.get_metric_history(run_id, key)
        assert sorted(point.step for point in history) == list(range(1, steps + 1)), key
    run = client.get_run(run_id)
    assert (run.info.status, run.data.tags["canary.completed"]) == ("FINISHED", "true")
    assert expanded(run.data.tags)["canary.last_step"] == str(steps)


def test_a_server_that_is_killed_and_comes_back_gets_every_row_once_and_in_order(
    shared: Any, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = journal_on(prepare_store(server.uri), tmp_path)
    recorder = journal.recorder
    assert recorder is not None
    for number in range(1, 101):
        step(journal, number)
    server.hang()  # first: what it took may be answered to nobody
    for number in range(101, 201):
        step(journal, number)
    server.kill()
    for number in range(201, 401):
        step(journal, number)
    assert recorder.outbox.path.exists()
    server.start()
    for number in range(401, 431):
        step(journal, number)
    journal.finish()
    assert journal.rows_lost == 0
    check_whole(shared.client, journal.target.run_id, 430)
    ordered = shared.client.get_metric_history(journal.target.run_id, "stability/loss")
    arrived = [point.step for point in sorted(ordered, key=lambda point: point.timestamp)]
    assert arrived == sorted(arrived)
    assert not recorder.outbox.path.exists()
    assert "did not take" not in caplog.text
    kept = Path(shared_download(journal))
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 431))
    assert not list(tmp_path.rglob("*.jsonl"))  # nothing is left behind


def shared_download(journal: Journal) -> str:
    client = journal.target.client
    assert client is not None
    return str(client.download_artifacts(journal.target.run_id, "stability.jsonl"))


def test_what_a_dead_server_did_not_take_is_delivered_later_by_command(
    shared: Any, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from canary_mlflow.cli import canary

    journal = journal_on(prepare_store(server.uri), tmp_path)
    assert journal.recorder is not None
    for number in range(1, 51):
        step(journal, number)
    server.kill()
    for number in range(51, 151):
        step(journal, number)
    with caplog.at_level(logging.WARNING):
        journal.finish(timeout=1.0)
    left = journal.recorder.undelivered
    assert left is not None
    assert journal.rows_lost > 0
    assert f"`canary deliver {left}` sends the rest" in caplog.text
    assert journal.recorder.lost == 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/another.db")  # not where the run is
    refused = CliRunner().invoke(canary, ["deliver"])
    assert refused.exit_code == 4, refused.output
    assert "nobody answers there" in refused.output
    assert left.exists()
    server.start()
    damaged = tmp_path / "0" / left.name  # before every id of a run, and holds up none
    damaged.parent.mkdir()
    damaged.write_text("{}")
    done = CliRunner().invoke(canary, ["deliver"])
    assert (done.exit_code, f"{damaged}: its first line names no run" in done.output) == (2, True), done.output
    assert f"{journal.rows_lost} values" in done.output
    damaged.unlink()
    check_whole(shared.client, journal.target.run_id, 150)
    assert not list(tmp_path.rglob("*.jsonl"))
    again = CliRunner().invoke(canary, ["deliver", str(left)])
    assert (again.exit_code, "No such file" in again.output) == (2, True)


def test_many_requests_at_once_do_not_wait_for_each_others_connections(shared: Any, server: Server) -> None:
    """Each holds a connection and asks for another: with SQLAlchemy's 15, 20 of them stood still for 30 s, and the
    server then refused half of them."""
    client = prepare_store(server.uri)
    runs = [client.create_run(shared.experiment).info.run_id for _ in range(20)]
    file = shared.uri.removeprefix("sqlite:///")
    with ThreadPoolExecutor(len(runs)) as threads, closing(sqlite3.connect(file)) as db:
        db.execute("BEGIN EXCLUSIVE")  # all of them are in the server before the first goes on
        sent = [threads.submit(Courier(client, run).points, [("loss", 1.0, 1, 1)]) for run in runs]
        time.sleep(1.5)
        db.rollback()
        for each in sent:
            each.result(timeout=20)
    assert all(client.get_run(run).data.metrics == {"loss": 1.0} for run in runs)
