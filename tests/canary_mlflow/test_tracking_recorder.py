"""The writer: nothing lost, nothing waited for, nothing silent."""

from __future__ import annotations

import errno
import math
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST, INVALID_PARAMETER_VALUE

from canary_mlflow.tracking.delivery.courier import Attempts
from canary_mlflow.tracking.delivery.recorder import Recorder
from canary_mlflow.tracking.reading.histories import read_runs


@pytest.fixture
def run_id(shared: Any) -> str:
    found: str = shared.client.create_run(shared.experiment).info.run_id
    return found


def test_every_value_arrives_once_in_its_place(shared: Any, run_id: str, tmp_path: Path) -> None:
    recorder = Recorder(shared.client, run_id, tmp_path, period=0.05)
    for step in range(1, 101):
        recorder.put(step, {"loss": math.nan if step == 3 else float(step), "trl/a": 0.0, "step_time": math.inf})
        time.sleep(0.001)
    assert recorder.close() == 0
    (run,) = read_runs(shared.client, [run_id])
    assert run.series["loss"].steps.tolist() == list(range(1, 101))
    assert math.isnan(run.series["loss"].values[2])
    assert set(run.series["step_time"].values) == {math.inf}
    assert len(shared.client.get_metric_history(run_id, "stability/loss")) == 100


def test_a_row_wider_than_a_batch_arrives_too(shared: Any, run_id: str, tmp_path: Path) -> None:
    recorder = Recorder(shared.client, run_id, tmp_path)
    recorder.put(1, {f"trl/{number}": float(number) for number in range(1500)})
    assert recorder.close() == 0
    assert len(shared.client.get_run(run_id).data.metrics) == 1500


def test_it_can_be_used_again_after_it_was_closed(shared: Any, run_id: str, tmp_path: Path) -> None:
    recorder = Recorder(shared.client, run_id, tmp_path)
    recorder.put(1, {"loss": 1.0})
    recorder.close()
    recorder.put(1, {"eval_loss": 2.0})
    assert recorder.close() == 0
    assert shared.client.get_run(run_id).data.metrics == {"stability/loss": 1.0, "quality/eval_loss": 2.0}


def test_what_was_sent_twice_is_there_once(shared: Any, run_id: str, tmp_path: Path) -> None:
    """A batch whose answer was lost is sent again: the store took it, the client never learnt."""

    class Forgetful(MlflowClient):
        times = 0

        def log_batch(self, *args: Any, **kwargs: Any) -> Any:
            super().log_batch(*args, **kwargs)
            self.times += 1
            if self.times == 1:
                raise ConnectionError("the answer got lost")

    client = Forgetful(tracking_uri=shared.uri)
    recorder = Recorder(client, run_id, tmp_path)
    for step in range(1, 11):
        recorder.put(step, {"loss": float(step)})
    assert recorder.close() == 0
    assert client.times == 2
    assert len(shared.client.get_metric_history(run_id, "stability/loss")) == 10


def test_a_value_that_mlflow_refuses_takes_no_other_with_it(shared: Any, run_id: str, tmp_path: Path) -> None:
    class Choosy(MlflowClient):
        def log_batch(self, run_id: str, metrics: Any = (), **kwargs: Any) -> Any:
            if any(one.key == "trl/odd" for one in metrics):
                raise MlflowException("not this one", error_code=INVALID_PARAMETER_VALUE)
            return super().log_batch(run_id, metrics, **kwargs)

    recorder = Recorder(Choosy(tracking_uri=shared.uri), run_id, tmp_path)
    recorder.put(1, {"loss": 1.0, "trl/odd": 0.0, "kl": 2.0})
    assert recorder.close(timeout=20) == 1
    assert "not this one" in recorder.why_lost
    assert shared.client.get_run(run_id).data.metrics == {"stability/loss": 1.0, "stability/kl": 2.0}


def test_a_run_that_does_not_exist_is_given_up_at_once_and_counted(shared: Any, tmp_path: Path) -> None:
    recorder = Recorder(shared.client, "0" * 32, tmp_path)
    recorder.put(1, {"loss": 1.0, "kl": 1.0})
    began = time.monotonic()
    assert recorder.close(timeout=30) == 2
    assert time.monotonic() - began < 10
    assert "0000" in recorder.why_waiting
    assert recorder.undelivered == tmp_path / "undelivered.jsonl"


def test_a_tag_that_mlflow_refuses_keeps_no_row_waiting(
    shared: Any, run_id: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(shared.client, run_id, tmp_path, period=0.05)
    recorder.put(1, {"loss": 1.0})
    recorder.tag({"x*": "no key of MLflow's"})
    time.sleep(1.0)
    recorder.put(2, {"loss": 2.0})
    recorder.tag({"y": "short"})
    assert recorder.close(timeout=20) == 0
    run = shared.client.get_run(run_id)
    assert (run.data.metrics, run.data.tags["y"]) == ({"stability/loss": 2.0}, "short")
    assert "tags refused" in caplog.text


def test_bad_request_from_a_database_without_a_free_connection_loses_nothing(
    shared: Any, run_id: str, tmp_path: Path
) -> None:
    """MLflow calls most errors of its database BAD_REQUEST."""
    engine = sa.create_engine(shared.uri, poolclass=sa.pool.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01)

    class Crowded(MlflowClient):
        times = 0

        def log_batch(self, *args: Any, **kwargs: Any) -> Any:
            self.times += 1
            if self.times % 2 == 0:
                return super().log_batch(*args, **kwargs)
            with engine.connect(), pytest.raises(sa.exc.TimeoutError) as caught:
                engine.connect()
            raise MlflowException(str(caught.value), error_code=BAD_REQUEST)

    client = Crowded(tracking_uri=shared.uri)
    recorder = Recorder(client, run_id, tmp_path)
    recorder.put(1, {"loss": 1.0, "kl": 2.0})
    recorder.tag({"x": "y"})
    assert recorder.close() == 0
    run = shared.client.get_run(run_id)
    assert (run.data.metrics, run.data.tags["x"]) == ({"stability/loss": 1.0, "stability/kl": 2.0}, "y")


def test_a_file_that_was_sent_just_before_the_process_ended_is_not_missed(
    shared: Any, run_id: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent = tmp_path / "stability.jsonl"
    sent.write_text("{}")
    recorder = Recorder(shared.client, run_id, tmp_path)
    recorder.move(sent)
    recorder.move(sent)  # from undelivered.jsonl, by `canary deliver`
    assert recorder.close() == 0
    assert [one.path for one in shared.client.list_artifacts(run_id)] == ["stability.jsonl"]
    assert "refused" not in caplog.text


def test_runs_that_fail_together_do_not_come_back_together() -> None:
    came: list[float] = []

    def fail() -> None:
        job = iter((OSError("first"), None))

        def attempt() -> None:
            if error := next(job):
                raise error
            came.append(time.monotonic())

        Attempts().make(attempt)

    threads = [threading.Thread(target=fail) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(came) - min(came) > 0.1


@pytest.mark.parametrize(
    ("error", "tries"),
    [(OSError(errno.ENOSPC, "No space left on device"), 1), (OSError(errno.EIO, "Input/output error"), 4)],
)
def test_a_full_disk_is_not_tried_again_when_the_run_is_over(error: OSError, tries: int) -> None:
    """Each of a run's files kept it waiting for a minute."""
    made: list[int] = []

    def job() -> None:
        made.append(1)
        if len(made) == 4:
            attempts.close(0.0)
        raise error

    attempts = Attempts()
    attempts.close(60.0)
    assert attempts.make(job) is error
    assert len(made) == tries


def test_a_server_that_only_hangs_keeps_its_rows_on_disk(tmp_path: Path) -> None:
    """It takes the connection and never answers; whoever ends this process after a while loses nothing."""
    others = threading.enumerate()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        recorder = Recorder(MlflowClient(f"http://127.0.0.1:{listening.getsockname()[1]}"), "r1", tmp_path)
        for step in range(1, 11):
            recorder.put(step, {"loss": float(step)})
        assert recorder.close(timeout=1.0) == 10
        (sending,) = set(threading.enumerate()) - set(others)
    assert recorder.undelivered is not None
    assert len(recorder.undelivered.read_text().splitlines()) == 11
    sending.join(30)  # the server is gone now, so its call fails, with a reason that is not why we gave up
    assert not sending.is_alive()
    assert "it did not answer in time" in next(iter(recorder.losses()))
