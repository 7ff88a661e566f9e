"""The callback in real trainers on a real store: what it measures is true, and every end is recorded."""

from __future__ import annotations

import ast
import gc
import json
import math
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forking
import mlflow
import numpy as np
import psutil
import pytest
import torch
from tiny_trainers import arguments, dpo, sft
from transformers import Trainer, TrainerCallback, TrainingArguments

from canary_mlflow import CanaryCallback
from canary_mlflow.errors import NoSuchRun
from canary_mlflow.gates.model.metrics import MEANINGS
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.reading.histories import read_runs

ROOT = Path(__file__).resolve().parents[2]
STEPS = 8


class Line(torch.nn.Module):
    """y = w x, with a loss of its own, as Transformers' models have."""

    def __init__(self, nan_at: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(4))
        self.calls, self.nan_at = 0, nan_at

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += self.training
        loss = ((x @ self.w - labels) ** 2).mean()
        if self.training and self.calls in self.nan_at:
            loss = loss + math.nan * self.w.detach().sum()  # the gradient stays finite
        return {"loss": loss}


def plain(place: Path, callbacks: list[Any], model: Line | None = None, **own: Any) -> Trainer:
    torch.manual_seed(1)
    x = torch.randn(64, 4)
    data = [{"x": row, "labels": row.sum()} for row in x]
    usual = {"remove_unused_columns": False, "learning_rate": 0.1} | own
    args = arguments(TrainingArguments, place, **usual)
    return Trainer(model=model or Line(), args=args, train_dataset=data, eval_dataset=data[:8], callbacks=callbacks)


def recording(shared: Any, **own: Any) -> CanaryCallback:
    return CanaryCallback(tracking_uri=shared.uri, experiment="recorded", **own)


def test_what_comes_before_the_steps_and_the_memory_of_what_comes_after_are_recorded(
    shared: Any, tmp_path: Path
) -> None:
    callbacks = [recording(shared), recording(shared)]
    for callback in callbacks:
        began = time.process_time()
        while time.process_time() < began + 0.3:  # what a script does before its training
            pass
        trainer = plain(tmp_path, [callback])
        trainer.train()
    spent = callbacks[1].rows[1]["setup_time"]
    assert 0.3 <= spent < time.process_time() - began  # from the end of the first
    assert not any({"setup_time", "outside_time"} & row.keys() for step, row in callbacks[1].rows.items() if step > 1)
    before, held = callbacks[1].rows[STEPS]["peak_memory"], psutil.Process().memory_info().rss / 2**20
    predict = trainer.prediction_step
    trainer.prediction_step = lambda *a, **k: (torch.ones(int((before - held + 256) * 2**18)), predict(*a, **k))[1]
    trainer.evaluate()
    assert callbacks[1].rows[STEPS]["peak_memory"] > before + 32


@pytest.mark.parametrize("build", [sft, dpo])
def test_a_trl_trainer_gives_a_whole_run_at_one_line(
    build: Callable[..., Any], shared: Any, tiny: str, place: Path
) -> None:
    canary = recording(shared)
    # TRL's own cadence is every 10 steps; two micro-batches a step, an evaluation on the way.
    trainer = build(
        tiny, place, [canary], gradient_accumulation_steps=2, logging_steps=10, eval_strategy="steps", eval_steps=4
    )
    trainer.train()
    assert canary.run_id is not None
    (run,) = read_runs(shared.client, [canary.run_id])
    steps = list(range(1, STEPS + 1))
    for name in ("step_time", "step_cpu_time", "tokens", "tokens_per_second", "peak_memory", "nonfinite", "loss"):
        assert run.series[name].steps.tolist() == steps, name
    for name in ("grad_norm", "learning_rate", "entropy"):
        assert run.series[name].steps.tolist() == steps, name
    assert run.series["eval_loss"].steps.tolist() == [4, 8]
    assert [row["loss"] for _, row in sorted(canary.rows.items())] == run.series["loss"].values.tolist()

    # TRL counts the same tokens, cumulatively, on its own.
    total = run.series["trl/num_tokens"].values
    assert run.series["tokens"].values.tolist() == [total[0], *(total[1:] - total[:-1])]
    assert run.series["tokens_per_second"].values == pytest.approx(
        run.series["tokens"].values / run.series["step_time"].values
    )

    assert (run.completed, run.failure, run.learned, run.last_step) == (True, "", True, STEPS)
    assert (run.nan_steps, run.inf_steps) == (0, 0)
    assert run.workload["algo"] == build.__name__
    assert run.hardware["backend"] == "cpu"
    assert run.environment["torch"] == torch.__version__
    assert run.environment.items() >= MEANINGS.items(), "what its metrics mean is compared with other versions' runs"
    stored = shared.client.get_run(canary.run_id)
    assert stored.info.status == "FINISHED"
    assert stored.data.params["cfg/learning_rate"] == "0.003"
    summary = json.loads((Path(stored.info.artifact_uri) / "metrics.json").read_text())
    assert summary["perf"]["step_time"]["count"] == STEPS - 5
    assert len(summary["stability"]["loss_values"]) == STEPS
    if build is dpo:
        assert run.series["reward_margin"].steps.tolist() == steps
        assert run.series["eval_accuracy"].steps.tolist() == [4, 8]
        assert summary["stability"]["loss_values"][0] == pytest.approx(math.log(2), abs=1e-6)


def test_the_callback_changes_no_number(tiny: str, place: Path, shared: Any) -> None:
    def losses(callbacks: list[Any]) -> list[float]:
        trainer = sft(tiny, place, callbacks, max_steps=3, logging_steps=1)
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    assert losses([]) == losses([recording(shared)])


def test_the_callback_draws_no_random_number(tiny: str, place: Path, shared: Any) -> None:
    """Answers are sampled, and dropout drawn, from the same states as without it."""

    def states(callbacks: list[Any]) -> list[Any]:
        found: list[Any] = []

        class Looks(TrainerCallback):
            def on_step_begin(self, *given: Any, **named: Any) -> None:
                found.append((torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())))

        sft(tiny, place, [*callbacks, Looks()], max_steps=2, logging_steps=1).train()
        return found

    assert states([]) == states([recording(shared)])


def test_the_console_keeps_the_users_interval(shared: Any, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every fourth step is printed, with the loss it has without the callback, the mean of four; all are recorded."""
    printed = []
    for callbacks in ([], [canary := recording(shared)]):
        trainer = plain(place, callbacks, logging_steps=4, seed=5)
        for _ in range(2):  # a second training keeps it too
            capsys.readouterr()
            trainer.train()
            lines = [ast.literal_eval(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
            printed.append([float(line["loss"]) for line in lines if "loss" in line])
        assert trainer.args.logging_steps == 4
    assert [len(one) for one in printed] == [2, 2, 2, 2]
    assert printed[2] == pytest.approx(printed[0], rel=1e-3)
    (run,) = read_runs(shared.client, [canary.run_id or ""])
    assert run.series["loss"].steps.tolist() == list(range(1, STEPS + 1))


class TurnOn(TrainerCallback):
    """Somebody who turns the filter on after everybody else."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        args.logging_nan_inf_filter = True


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("others", [[], [TurnOn()]], ids=["filter left on", "filter turned on again"])
def test_a_nan_loss_is_recorded_at_its_step_whatever_the_filter_says(
    others: list[Any], accumulated: int, shared: Any, place: Path
) -> None:
    canary = recording(shared)
    model = Line(nan_at=(3 * accumulated, 6 * accumulated))
    own = {"gradient_accumulation_steps": accumulated, "logging_nan_inf_filter": True, "logging_steps": 1}
    plain(place, [canary, *others], model, **own).train()
    assert canary.run_id is not None
    (run,) = read_runs(shared.client, [canary.run_id])
    loss = run.series["loss"]
    assert loss.steps[~loss.finite].tolist() == [3, 6]
    assert run.series["nonfinite"].values.tolist() == [0, 0, 1, 0, 0, 1, 0, 0]
    assert (run.nan_steps, run.inf_steps, run.completed) == (2, 0, True)
    assert shared.client.get_run(canary.run_id).info.status == "FINISHED"
    found = shared.client.search_runs([shared.experiment], "tags.canary.finite = 'false'")
    assert canary.run_id in {one.info.run_id for one in found}, "it can be told from a run that trained"


def test_a_trainer_with_a_loss_of_its_own_shows_a_nan_at_its_step(shared: Any, tiny: str, place: Path) -> None:
    canary = recording(shared)
    trainer = dpo(tiny, place, [canary])
    healthy = trainer.compute_loss

    def poisoned(*given: Any, **named: Any) -> Any:
        loss = healthy(*given, **named)
        return loss * math.nan if trainer.state.global_step == 4 else loss  # spoils every weight after step 5

    trainer.compute_loss = poisoned
    trainer.train()
    loss = [canary.rows[step]["loss"] for step in range(1, STEPS + 1)]
    assert [math.isnan(value) for value in loss] == [False] * 4 + [True] * 4
    assert canary.journal is not None
    assert canary.journal.nan_steps == 4
    assert canary.journal.learned is not None
    assert not canary.journal.learned[0]


def test_transformers_really_hides_it_without_the_callback(place: Path) -> None:
    trainer = plain(place, [], Line(nan_at=(3,)), logging_nan_inf_filter=True, logging_steps=1)
    trainer.train()
    assert all(math.isfinite(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)


class Slow(TrainerCallback):
    """Takes 0.3 s of every evaluation."""

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(0.15)


def test_the_clock_runs_end_to_end_without_evaluation(shared: Any, place: Path) -> None:
    class Sleepy(Line):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            time.sleep(0.02 if self.training else 0)
            return super().forward(x, labels)

    canary = recording(shared)
    plain(place, [canary, Slow()], Sleepy(), eval_strategy="steps", eval_steps=2).train()
    times = [canary.rows[step]["step_time"] for step in range(1, STEPS + 1)]
    assert min(times) >= 0.02
    assert all(time < 0.25 for time in times[2::2]), times  # the steps after an evaluation, of 0.3 s each
    cpu = [canary.rows[step]["step_cpu_time"] for step in range(1, STEPS + 1)]
    assert sum(cpu) < sum(times)


class Break(TrainerCallback):
    """Raises at the end of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise RuntimeError("a bug")


def test_close_in_a_finally_records_the_exception_and_all_rows_until_then(shared: Any, place: Path) -> None:
    canary = recording(shared)
    trainer = plain(place, [canary, Break(5)], logging_steps=1)

    def train() -> None:
        try:
            trainer.train()
        finally:
            canary.close()

    with pytest.raises(RuntimeError, match="a bug"):
        train()
    assert canary.run_id is not None
    (run,) = read_runs(shared.client, [canary.run_id])
    assert (run.completed, run.failure, run.last_step) == (False, "error", 5)
    assert run.failure_reason == "RuntimeError: a bug (after step 5)"
    assert re.fullmatch(r"RuntimeError at (\S*/)?test_tracking_callback\.py:\d+ in \w+", str(run.raised))
    assert run.series["step_time"].steps.tolist() == [1, 2, 3, 4, 5]
    assert shared.client.get_run(canary.run_id).info.status == "FAILED"
    summary = Path(shared.client.get_run(canary.run_id).info.artifact_uri) / "metrics.json"
    assert json.loads(summary.read_text())["status"] == "failed"


def test_a_trainer_that_is_dropped_leaves_no_run_running(shared: Any, place: Path) -> None:
    def crash() -> str:
        canary = recording(shared)
        with pytest.raises(RuntimeError):
            plain(place, [canary, Break(2)]).train()
        return str(canary.run_id)

    run_id = crash()
    gc.collect()
    assert shared.client.get_run(run_id).info.status == "FAILED"


SCRIPT = """
import os, signal, sys
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from canary_mlflow import CanaryCallback

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(2))
    def forward(self, x, labels):
        return {"loss": ((x @ self.w - labels) ** 2).mean()}

class End(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 4 and how == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        elif state.global_step == 4:
            raise ValueError("no more")

# Importing takes seconds; each way to end gets a process of its own after it.
children = {}
for how in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        break
    children[how] = child
else:
    print({how: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for how, child in children.items()})
    sys.exit()

data = [{"x": torch.ones(2), "labels": torch.tensor(1.0)}] * 16
args = TrainingArguments(output_dir="out", max_steps=9, use_cpu=True, report_to="none", disable_tqdm=True,
                         save_strategy="no", remove_unused_columns=False)
canary = CanaryCallback(tracking_uri=sys.argv[1], experiment="recorded", tags={"script": how})
Trainer(model=Line(), args=args, train_dataset=data, callbacks=[canary, End()]).train()
"""


def test_a_script_that_ends_half_way_leaves_a_failed_run(shared: Any, place: Path) -> None:
    expected = {"SIGTERM": (128 + signal.SIGTERM, "interrupted"), "ValueError": (1, "error")}
    done = subprocess.run(
        [forking.python(), "-c", SCRIPT, shared.uri, *expected],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str({how: code for how, (code, _) in expected.items()}), done.stderr
    for how, (_, failure) in expected.items():
        found = shared.client.search_runs([shared.experiment], f"tags.script = '{how}'")
        assert len(found) == 1, done.stderr
        stored = found[0]
        (run,) = read_runs(shared.client, [stored.info.run_id])
        assert stored.info.status == "FAILED"
        assert (run.failure, run.last_step, run.completed) == (failure, 4, False)
        assert how in run.failure_reason
        assert run.series["step_time"].steps.tolist() == [1, 2, 3, 4]


def test_a_given_run_is_written_and_left_to_its_owner(shared: Any, place: Path) -> None:
    run_id = shared.client.create_run(shared.experiment).info.run_id
    canary = CanaryCallback(
        run_id, tracking_uri=shared.uri, workload={"algo": "sft", "data": "x"}, config={"algo": {"name": "sft"}}
    )
    trainer = plain(place, [canary], max_steps=10)
    trainer.train()
    stored = shared.client.get_run(run_id)
    assert stored.info.status == "RUNNING"
    assert {key: value for key, value in expanded(stored.data.tags).items() if key.startswith("canary.workload.")} == {
        "canary.workload.algo": "sft",
        "canary.workload.data": "x",
    }
    assert stored.data.params == {}
    assert (Path(stored.info.artifact_uri) / "config.yaml").read_text() == "algo:\n  name: sft\n"
    trainer.evaluate()  # after the end: recorded at once
    assert "quality/eval_loss" in shared.client.get_run(run_id).data.metrics


def test_the_active_mlflow_run_is_joined_and_stays_open(
    shared: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", shared.uri)
    with mlflow.start_run(experiment_id=shared.experiment) as active:
        canary = CanaryCallback()
        plain(place, [canary], max_steps=2).train()
        assert canary.run_id == active.info.run_id
        assert mlflow.active_run() is not None
        assert shared.client.get_run(canary.run_id).info.status == "RUNNING"


def test_an_unknown_run_stops_before_the_first_step(shared: Any, place: Path) -> None:
    with pytest.raises(NoSuchRun):
        plain(place, [CanaryCallback("0" * 32, tracking_uri=shared.uri)]).train()


def test_a_dead_store_does_not_stop_training_and_is_said(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    canary = CanaryCallback(tracking_uri="http://127.0.0.1:9")
    plain(place, [canary], max_steps=3).train()
    assert [canary.rows[step]["tokens"] for step in canary.rows if "tokens" in canary.rows[step]] == []
    assert len(canary.rows) == 3
    assert canary.journal is not None
    assert canary.journal.rows_lost > 0
    assert "nobody answers" in caplog.text
    assert f"{canary.journal.rows_lost} values did not reach MLflow" in caplog.text


def test_a_run_whose_parameters_stand_still_did_not_learn(shared: Any, place: Path) -> None:
    canary = recording(shared)
    plain(place, [canary], learning_rate=0.0).train()
    assert canary.journal is not None
    assert canary.journal.learned == (False, "no trainable parameter changed")


def test_a_training_resumed_in_a_new_run_is_other_work_and_not_one_that_learned_nothing(
    shared: Any, place: Path
) -> None:
    first, again = recording(shared), recording(shared)
    trainer = plain(place, [first], save_strategy="steps", save_steps=4, logging_steps=1)
    trainer.train()
    checkpoint = str(Path(trainer.args.output_dir) / "checkpoint-4")
    plain(place, [again], logging_steps=1).train(resume_from_checkpoint=checkpoint)
    assert again.journal is not None
    assert again.journal.learned == (None, "resumed from a checkpoint: how it began is not known")
    assert again.journal.target.workload == {**first.journal.target.workload, "resumed_at": "4"}
    same = recording(shared, run_id=first.run_id)
    plain(place, [same], logging_steps=1).train(resume_from_checkpoint=checkpoint)
    assert same.journal.target.workload == first.journal.target.workload, "this run has the steps before"


def test_parameters_broken_by_the_last_update_are_found(shared: Any, place: Path) -> None:
    class Poison(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == STEPS:
                with torch.no_grad():
                    kwargs["model"].w[0] = math.nan

    canary = recording(shared)
    plain(place, [canary, Poison()]).train()
    tags = expanded(shared.client.get_run(canary.run_id).data.tags)
    assert (tags["canary.parameters_finite"], tags["canary.nan_steps"]) == ("false", "1")


def test_a_probe_that_breaks_is_switched_off_and_named(
    shared: Any, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from canary_mlflow.tracking.probes.memory import Memory

    def broken(self: Any, row: dict[str, float]) -> None:
        raise OSError("no such counter")

    monkeypatch.setattr(Memory, "step_ended", broken)
    canary = recording(shared)
    plain(place, [canary]).train()
    assert "peak_memory" not in canary.rows[STEPS]
    assert "step_time" in canary.rows[STEPS]
    assert "probe memory: step_ended: OSError: no such counter" in caplog.text
    assert "no such counter" in expanded(shared.client.get_run(canary.run_id).data.tags)["canary.troubles"]


def test_no_hook_stays_on_the_model(shared: Any, place: Path) -> None:
    trainer = plain(place, [recording(shared)], max_steps=1)
    trainer.train()
    assert not trainer.model._forward_hooks
