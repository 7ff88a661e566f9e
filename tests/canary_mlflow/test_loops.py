"""Loops without a Transformers trainer: the same rows, watch, end and gate; Lightning and Accelerate stand on them."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from line_training import fit
from mlflow import MlflowClient
from mlflow.entities import Run

import canary_mlflow
from canary_mlflow import CanaryCallback, session
from canary_mlflow.errors import UsageError
from canary_mlflow.registry.sessions.own import Session
from canary_mlflow.reports.decision import Decision
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.experiment import VARIABLE
from canary_mlflow.tracking.signals import Terminated
from canary_mlflow.tracking.stores.session import child_runs

STEPS = 40
QUIET: dict[str, Any] = {"system_metrics": False}


def batches(seed: int, count: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(64, 4, generator=draw)
        yield x, x.sum(1, keepdim=True) + 0.1 * torch.randn(64, 1, generator=draw)


def loop(opened: Any, seed: int, rate: float) -> None:
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with opened.run(seed=seed, max_steps=STEPS, config={"learning_rate": rate}, **QUIET) as run:
        run.watch(model, optimizer)
        for step, (x, y) in enumerate(batches(seed)):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(step, loss=loss)


def lightning_fit(opened: Any, seed: int, rate: float) -> None:
    pl = pytest.importorskip("lightning.pytorch")

    class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(4, 1)
            self.save_hyperparameters({"rate": rate})

        def training_step(self, batch: Any, index: int) -> Any:
            loss = (self.line(batch[0]) - batch[1]).square().mean()
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", (self.line(batch[0]) - batch[1]).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=rate)

    pl.seed_everything(seed, verbose=False)
    made = canary_mlflow.LightningCallback(**QUIET)
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, callbacks=[made],
                         gradient_clip_val=100.0)  # fmt: skip
    rows = list(batches(seed, STEPS // 2))
    trainer.fit(Module(), *(torch.utils.data.DataLoader(data, batch_size=None) for data in (rows, rows[:2])))


def accelerate_loop(opened: Any, seed: int, rate: float) -> None:
    accelerate = pytest.importorskip("accelerate")
    tracker = canary_mlflow.AccelerateTracker(seed=seed, max_steps=STEPS, **QUIET)
    accelerator = accelerate.Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("line", config={"learning_rate": rate})
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=rate))
    tracker.watch(model, optimizer)
    for step, (x, y) in enumerate(batches(seed), 1):
        loss = (model(x) - y).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"train_loss": loss.item(), "note": "a text"}, step=step)
    accelerator.end_training()


LOOPS = {"loop": loop, "lightning": lightning_fit, "accelerate": accelerate_loop}


def judged(train: Callable[[Any, int, float], None], rate: float) -> tuple[str, Decision]:
    with session("line") as opened:
        for seed in range(3):
            train(opened, seed, rate)
    version = canary_mlflow.register(opened.session_id)
    return opened.session_id, canary_mlflow.gate("line", version, policy="files")


def runs_of(session_id: str) -> list[Run]:
    return child_runs(MlflowClient(), session_id)


@pytest.mark.parametrize("kind", LOOPS)
def test_a_loop_passes_unchanged_and_blocks_on_harm(store: str, kind: str) -> None:
    first, decision = judged(LOOPS[kind], 0.05)
    assert decision.word == "bootstrap"
    runs = runs_of(first)
    assert {run.info.status for run in runs} == {"FINISHED"}
    for seed, run in enumerate(runs):
        tags = expanded(run.data.tags)
        assert (tags["canary.seed"], tags["canary.last_step"], tags["canary.learned"]) == (str(seed), "40", "true")
        assert (tags["canary.max_steps"], tags["canary.troubles"]) == ("40", "")
        assert tags["canary.workload.model"].startswith("Module" if kind == "lightning" else "Linear")
        assert run.data.params["cfg/rate" if kind == "lightning" else "cfg/learning_rate"] == "0.05"
        assert {
            "perf/step_time",
            "perf/step_cost",
            "perf/peak_memory",
            "stability/grad_norm",
        } <= run.data.metrics.keys()
        assert run.data.metrics["stability/learning_rate"] == 0.05
    assert Session(session_id=first, model="line", store=store)._repr_html_().count(">40<") == 3  # their last steps
    rows = canary_mlflow.frame(first, rows=True)
    assert rows.groupby("run").size().tolist() == [40] * 3
    assert rows["loss"].notna().all()
    assert rows["grad_norm"].gt(0).all()
    assert (rows["eval_loss"].count() == 6) if kind == "lightning" else ("eval_loss" not in rows)
    _, decision = judged(LOOPS[kind], 0.05)
    assert decision.word == "PASS"
    _, decision = judged(LOOPS[kind], 50.0)
    assert decision.word == "BLOCK"
    assert (decision.champion_after, decision.exit_code) == ("2", 1)


def test_a_loop_has_the_series_of_a_trainer(store: str, tmp_path: Path) -> None:
    """But for those that come of the trainer's own log and of its events."""
    with session("line") as opened:
        fit(tmp_path, CanaryCallback(system_metrics=False), 12)
        loop(opened, 0, 0.05)
    trainers, own = (run.data.metrics.keys() for run in runs_of(opened.session_id))
    assert {key for key in trainers - own if not key.startswith("trl/")} == {"perf/compute_time", "perf/data_wait"}
    assert own - trainers == set()


def test_without_a_model_the_clock_and_the_memory_are_measured(store: str) -> None:
    with session("line") as opened, opened.run(seed=3, **QUIET) as run:
        run.log(0, eval_loss=9.0)
        for step in range(1, 13):
            run.log(step, {"reward": step / 10, "ppo/policy/entropy": 1.0, "own": torch.tensor(2.0), "texts": ["a"]})
            run.log(step, kl=0.1)
    (found,) = runs_of(opened.session_id)
    assert found.info.status == "FINISHED"
    metrics = found.data.metrics
    assert (metrics["stability/reward_mean"], metrics["stability/entropy"], metrics["trl/own"]) == (1.2, 1.0, 2.0)
    assert {"perf/step_time", "perf/step_cpu_time", "perf/peak_memory"} <= metrics.keys()
    assert "stability/grad_norm" not in metrics
    history = MlflowClient().get_metric_history(found.info.run_id, "stability/kl")
    assert sorted(one.step for one in history) == list(range(1, 13))
    assert [one.step for one in MlflowClient().get_metric_history(found.info.run_id, "quality/eval_loss")] == [0]


def broken_off(kind: type[BaseException], script: Callable[[Any], object]) -> tuple[str, dict[str, str]]:
    """Status and tags of the run of a session in which a script broke off."""
    opened = session("line")
    with pytest.raises(kind), opened as inside:
        script(inside)
    (found,) = runs_of(inside.session_id)
    return found.info.status, expanded(found.data.tags)


def divide(opened: Any) -> None:
    with opened.run(seed=0, **QUIET) as run:
        run.log(0, loss=1.0)
        _ = 1 / 0


def test_a_loop_that_breaks_off_says_why(store: str) -> None:
    status, tags = broken_off(ZeroDivisionError, divide)
    assert (status, tags["canary.failure"], tags["canary.exception"]) == ("FAILED", "error", "ZeroDivisionError")
    assert tags["canary.failure_reason"].endswith("(after step 1)")


def test_a_nan_is_counted_and_a_stop_of_the_watch_ends_the_run(store: str) -> None:
    watch = {"base": "default", "on_critical": "stop"}
    with session("line") as opened, opened.run(seed=0, max_steps=200, watch=watch, **QUIET) as run:
        for step in range(1, 200):
            run.log(step, loss=1.0 if step < 20 else math.nan)
            if run.stopped:
                break
    assert step < 100
    (found,) = runs_of(opened.session_id)
    tags = expanded(found.data.tags)
    assert (found.info.status, tags["canary.failure"], tags["canary.watch.level"]) == (
        "FAILED",
        "instability",
        "stopped",
    )
    assert int(tags["canary.nan_steps"]) == step - 19


def terminate(opened: Any) -> None:
    with opened.run(seed=0, **QUIET) as run:
        run.log(1, loss=1.0)
        os.kill(os.getpid(), signal.SIGTERM)
        run.log(2, loss=1.0)


def test_a_terminated_loop_reads_failed(store: str) -> None:
    status, tags = broken_off(Terminated, terminate)
    assert (status, tags["canary.failure"], tags["canary.last_step"]) == ("FAILED", "interrupted", "1")


def leave(opened: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, log_with=canary_mlflow.AccelerateTracker(seed=0, **QUIET))
    accelerator.init_trackers("line", config={})
    accelerator.log({"loss": 1.0}, step=1)
    raise KeyError("no such column")


def test_a_tracker_that_its_script_left_ends_with_the_scripts_error(store: str) -> None:
    status, tags = broken_off(KeyError, leave)
    assert (status, tags["canary.exception"]) == ("FAILED", "KeyError")


def test_outside_a_session_a_loop_has_a_run_of_its_own(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with canary_mlflow.LoopRun(seed=0, **QUIET) as run:
        run.log(1, loss=1.0)
    assert MlflowClient().get_run(run.run_id).info.status == "FINISHED"
    monkeypatch.setenv("RANK", "1")
    with canary_mlflow.LoopRun(seed=0, **QUIET) as other:
        other.watch(torch.nn.Linear(1, 1))
        other.log(1, loss=1.0)
    assert other.run_id is None


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as raised:
        act()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_cannot_be_is_refused_in_one_line(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with session("line") as opened:
        with opened.run(seed=0, watch=None, **QUIET) as run:
            assert "the model is a str" in refused(lambda: run.watch("Linear"))  # type: ignore[arg-type]
            assert "loss is a Tensor of shape (2,)" in refused(lambda: run.log(5, loss=torch.ones(2)))
            assert "log(step, loss=…)" in refused(lambda: run.log(5, {"a": "text"}))
            assert "-1" in refused(lambda: run.log(-1, loss=1.0))
            run.log(5, loss=1.0)
            assert "step is 4, after step 5" in refused(lambda: run.log(4, loss=1.0))
            assert "step 5 was logged already" in refused(lambda: run.watch(torch.nn.Linear(1, 1)))
        assert "has ended" in refused(lambda: run.log(6, loss=1.0))
        assert "has begun already" in refused(lambda: run.begin())
        assert "seed is 'a'" in refused(lambda: opened.run(seed="a"))  # type: ignore[arg-type]
        assert "has not begun" in refused(lambda: opened.run(seed=1).log(1, loss=1.0))
    assert opened.session_id in refused(lambda: opened.run(seed=0))
    monkeypatch.setenv(VARIABLE, opened.session_id)
    with pytest.raises(UsageError), canary_mlflow.LoopRun(seed=0):
        pass
