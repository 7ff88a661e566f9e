"""The writer: nothing lost, nothing waited for, nothing silent."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import pytest
from mlflow import MlflowClient

from canary_mlflow.tracking.histories import read_runs
from canary_mlflow.tracking.recorder import Recorder

WIDTH = 24  # metrics of a step


@pytest.fixture
def run_id(shared: Any) -> str:
    found: str = shared.client.create_run(shared.experiment).info.run_id
    return found


def test_every_value_arrives_once_in_its_place(shared: Any, run_id: str) -> None:
    recorder = Recorder(shared.client, run_id, period=0.05)
    for step in range(1, 101):
        recorder.put(step, {"loss": math.nan if step == 3 else float(step), "trl/a": 0.0, "step_time": math.inf})
        time.sleep(0.001)
    assert recorder.close() == 0
    (run,) = read_runs(shared.client, [run_id])
    assert run.series["loss"].steps.tolist() == list(range(1, 101))
    assert math.isnan(run.series["loss"].values[2])
    assert set(run.series["step_time"].values) == {math.inf}
    assert len(shared.client.get_metric_history(run_id, "stability/loss")) == 100


def test_a_row_wider_than_a_batch_arrives_too(shared: Any, run_id: str) -> None:
    recorder = Recorder(shared.client, run_id)
    recorder.put(1, {f"trl/{number}": float(number) for number in range(1500)})
    assert recorder.close() == 0
    assert len(shared.client.get_run(run_id).data.metrics) == 1500


def test_it_can_be_used_again_after_it_was_closed(shared: Any, run_id: str) -> None:
    recorder = Recorder(shared.client, run_id)
    recorder.put(1, {"loss": 1.0})
    recorder.close()
    recorder.put(1, {"eval_loss": 2.0})
    assert recorder.close() == 0
    assert shared.client.get_run(run_id).data.metrics == {"stability/loss": 1.0, "quality/eval_loss": 2.0}


def test_what_was_sent_twice_is_there_once(shared: Any, run_id: str) -> None:
    """A batch whose answer was lost is sent again: the store took it, the client never learnt."""

    class Forgetful(MlflowClient):
        times = 0

        def log_batch(self, *args: Any, **kwargs: Any) -> Any:
            super().log_batch(*args, **kwargs)
            self.times += 1
            if self.times == 1:
                raise ConnectionError("the answer got lost")

    client = Forgetful(tracking_uri=shared.uri)
    recorder = Recorder(client, run_id)
    for step in range(1, 11):
        recorder.put(step, {"loss": float(step)})
    assert recorder.close() == 0
    assert client.times == 2
    assert len(shared.client.get_metric_history(run_id, "stability/loss")) == 10


def test_a_value_that_mlflow_refuses_takes_no_other_with_it(shared: Any, run_id: str) -> None:
    recorder = Recorder(shared.client, run_id)
    recorder.put(1, {"loss": 1.0, "grad_norm": "a word", "kl": 2.0})  # type: ignore[dict-item]
    assert recorder.close(timeout=20) == 1
    assert recorder.why_lost
    assert shared.client.get_run(run_id).data.metrics == {"stability/loss": 1.0, "stability/kl": 2.0}


def test_a_run_that_does_not_exist_is_given_up_at_once_and_counted(shared: Any) -> None:
    recorder = Recorder(shared.client, "0" * 32)
    recorder.put(1, {"loss": 1.0, "kl": 1.0})
    began = time.monotonic()
    assert recorder.close(timeout=30) == 2
    assert time.monotonic() - began < 10
    assert "0000" in recorder.why_lost


def test_the_end_is_written_after_the_numbers(shared: Any, run_id: str) -> None:
    recorder = Recorder(shared.client, run_id)
    seen: list[dict[str, float]] = []
    recorder.call("look", lambda: seen.append(shared.client.get_run(run_id).data.metrics))
    recorder.put(1, {"loss": 1.0})
    recorder.close()
    assert seen == [{"stability/loss": 1.0}]


def test_handing_over_a_step_is_cheap(shared: Any, run_id: str) -> None:
    """The caller's part of a step with 24 metrics, as the callback does it; at most 150 µs (median)."""
    import torch

    from canary_mlflow.tracking.journal import Journal, Target
    from canary_mlflow.tracking.probes import Setting, standard_probes

    target = Target(client=shared.client, run_id=run_id, owned=False, algo="dpo")
    journal = Journal(target, standard_probes())
    model = torch.nn.Linear(2, 2)
    journal.begin(
        Setting(model=model, device="cpu", compiled=False, ranks=1, iterates=False, idle_cpu=journal.cpu_seconds)
    )
    keys = ["loss", "grad_norm", "learning_rate", "rewards/chosen", "rewards/margins", "num_tokens"]
    keys += [f"other/{number}" for number in range(WIDTH - len(keys) - 5)]
    taken = []
    for step in range(1, 301):
        logs = {key: float(step) for key in keys}
        began = time.perf_counter()
        journal.step_ended(step)
        journal.logged(step, logs)
        taken.append(time.perf_counter() - began)
    journal.finish()
    assert len(journal.rows[300]) >= WIDTH
    assert statistics.median(taken) < 150e-6
    assert journal.rows_lost == 0
