"""`canary import` as its user meets it: files of four stacks become runs that read like recorded ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from mlflow.exceptions import MlflowException
from tensorboardX import SummaryWriter

from canary_mlflow import cli
from canary_mlflow.files.reading import read_history
from canary_mlflow.tracking.reading import imports
from canary_mlflow.tracking.reading.histories import read_runs
from canary_mlflow.tracking.sinks import SinkSetting, StabilityLog, TensorBoard

STEPS = 60
FACTS = ("--workload", "model=tiny", "--workload", "data=pairs", "--hardware", "gpu=none")


def canary(*words: object) -> Result:
    return CliRunner().invoke(cli.canary, list(map(str, words)), catch_exceptions=False, prog_name="canary")


def loss(step: int) -> float:
    return 2.0 * 0.97**step + 0.01 * (step % 3)


def trainer_state(folder: Path, name: str = "trainer_state.json", *, last: int = STEPS, **values: float) -> Path:
    """As Transformers writes it; `values` are those of the last entry."""
    history: list[dict[str, Any]] = [
        {"step": step, "epoch": step / 10, "loss": loss(step), "grad_norm": 1.0, "learning_rate": 1e-4}
        for step in range(1, last + 1)
    ]
    history[-1] |= values
    path = folder / name
    # The folder makes it another file in each test: all of them share one store.
    state = {"best_model_checkpoint": str(folder), "max_steps": STEPS, "log_history": history}
    path.write_text(json.dumps(state))
    return path


def verl(folder: Path) -> Path:
    """As its file logger writes it."""
    path = folder / "metrics.jsonl"
    rows = [
        {
            "step": step,
            "data": {
                "actor/pg_loss": -0.02,
                "actor/kl_loss": 0.01,
                "actor/entropy": 0.9,
                "actor/grad_norm": 0.3,
                "critic/rewards/mean": 0.01 * step,
                "critic/score/mean": 0.012 * step,
                "critic/advantages/mean": 0.0,
                "response_length/mean": 200.0,
                "perf/total_num_tokens": 40_000,
                "perf/throughput": 1000.0,
                "perf/max_memory_allocated_gb": 40.0,
                "timing_s/step": 20.0,
                "timing_s/gen": 12.0,
                "timing_s/old_log_prob": 1.0,
                "timing_s/values": 2.0,
                "timing_s/update_actor": 4.0,
                "val-core/gsm8k/reward/mean@1": 0.4,
            },
        }
        for step in range(1, STEPS + 1)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def imported(shared: Any, *words: object) -> list[dict[str, Any]]:
    result = canary("import", *words, "--tracking-uri", shared.uri, "--experiment", "imports", "--json")
    assert result.exit_code == 0, result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def count(shared: Any) -> int:
    experiments = [item.experiment_id for item in shared.client.search_experiments()]
    return len(shared.client.search_runs(experiments, max_results=1000))


def test_a_trainer_state_reads_like_a_recorded_run(shared: Any, tmp_path: Path) -> None:
    (found,) = imported(shared, trainer_state(tmp_path), "--algo", "sft", "--seed", 3)
    assert (found["status"], found["failure"], found["notes"]) == ("FINISHED", None, [])
    (run,) = read_runs(shared.client, [found["run_id"]])
    assert (run.completed, run.failure, run.seed, run.learned, run.last_step) == (True, "", 3, True, STEPS)
    assert run.series["loss"].values.tolist() == [loss(step) for step in range(1, STEPS + 1)]
    recorded = shared.client.get_run(found["run_id"])
    assert recorded.info.status == "FINISHED"
    assert {"stability/loss", "stability/grad_norm", "stability/learning_rate"} <= set(recorded.data.metrics)
    assert recorded.data.tags["canary.algo"] == "sft"


def test_the_watch_goes_over_what_is_imported(shared: Any, tmp_path: Path) -> None:
    rises = [loss(step) if step < 30 else 3 * loss(1) for step in range(1, STEPS + 1)]
    file = tmp_path / "rises.jsonl"
    file.write_text("".join(f'{{"step": {step}, "loss": {value}}}\n' for step, value in enumerate(rises, 1)))
    ids = [imported(shared, path, "--algo", "sft")[0]["run_id"] for path in (trainer_state(tmp_path), file)]
    learned, lost = read_runs(shared.client, ids)
    assert learned.critical_held == ""
    assert "loss_rise" in (lost.critical_held or "")


def test_what_nobody_says_stays_unknown(shared: Any, tmp_path: Path) -> None:
    (found,) = imported(shared, trainer_state(tmp_path))
    assert (found["algo"], found["seed"], found["comparable"]) == (None, None, False)
    tags = shared.client.get_run(found["run_id"]).data.tags
    assert "canary.algo" not in tags
    assert "canary.seed" not in tags


@pytest.mark.parametrize(
    ("values", "last", "failure", "reason"),
    [
        ({"loss": math.nan, "grad_norm": math.nan}, STEPS, "instability", "loss is nan from step 60 to the end"),
        ({"grad_norm": math.inf}, STEPS, "instability", "grad_norm is inf from step 60 to the end"),
        ({}, 40, "error", "the history ends at step 40 of 60"),
        ({"loss": math.nan, "grad_norm": math.nan}, 40, "instability", "loss is nan from step 40 to the end"),
    ],
)
def test_a_run_that_broke_off_says_so(
    shared: Any, tmp_path: Path, values: dict[str, float], last: int, failure: str, reason: str
) -> None:
    (found,) = imported(shared, trainer_state(tmp_path, last=last, **values))
    assert (found["status"], found["failure"], found["reason"]) == ("FAILED", failure, reason)
    assert shared.client.get_run(found["run_id"]).info.status == "FAILED"
    (run,) = read_runs(shared.client, [found["run_id"]])
    assert (run.completed, run.nan_steps) == (False, int("loss" in values))
    assert not math.isfinite(run.series["grad_norm"].values[-1]) or failure == "error"


def test_the_end_that_the_json_beside_a_file_tells_is_not_told_otherwise(shared: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    rows = [{"step": step, "loss": loss(step) if step < 40 else math.nan} for step in range(1, 41)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path.with_suffix(".json").write_text('{"failure": "error", "failure_reason": "the disk was full"}')
    (found,) = imported(shared, path)
    assert (found["failure"], found["reason"]) == ("error", "the disk was full")


def test_a_last_row_that_was_not_due_yet_is_no_cut(shared: Any, tmp_path: Path) -> None:
    """A log line every ten steps leaves the last ones of 95 without."""
    rows = [{"step": step, "loss": loss(step)} for step in range(10, 100, 10)]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"max_steps": 95, "log_history": rows}))
    (found,) = imported(shared, path)
    assert found["status"] == "FINISHED"


def test_verl_comes_in_our_names_and_units(shared: Any, tmp_path: Path) -> None:
    (found,) = imported(shared, verl(tmp_path))
    assert found["kind"] == "jsonl of verl"
    (run,) = read_runs(shared.client, [found["run_id"]])
    last = {name: series.values[-1] for name, series in run.series.items()}
    assert last["kl"] == pytest.approx(2.0)  # 0.01 a token, 200 tokens a response
    assert last["tokens_per_second"] == 2000.0  # all GPUs, where perf/throughput is per GPU
    assert last["peak_memory"] == 40 * 1024
    assert (last["iteration_time"], last["step_time"], last["time_generate"]) == (20.0, 20.0, 12.0)
    assert (last["time_score"], last["time_update"]) == (3.0, 4.0)
    assert (last["policy_loss"], last["entropy"], last["eval_reward"]) == (-0.02, 0.9, 0.4)
    assert "advantage_mean" not in last  # whitened there
    assert last["trl/perf/throughput"] == 1000.0
    assert run.learned is True  # by its reward: its loss says nothing


def test_our_own_files_come_back_as_they_went(shared: Any, tmp_path: Path) -> None:
    setting = SinkSetting(folder=tmp_path, artifacts=None, algo="sft", batch_size=4)
    sinks = [StabilityLog(setting), TensorBoard(setting)]
    for sink in sinks:
        sink.begin(None)
        for step in range(1, 31):
            sink.row_closed(step, {"loss": loss(step), "grad_norm": math.nan if step == 7 else 0.5, "step_time": 0.25})
        sink.finish(None)  # type: ignore[arg-type]
    for place, exact in ((tmp_path / "stability.jsonl", True), (tmp_path / "tensorboard", False)):
        (found,) = imported(shared, place)
        (run,) = read_runs(shared.client, [found["run_id"]])
        wanted = [loss(step) for step in range(1, 31)]
        assert run.series["loss"].values.tolist() == (wanted if exact else np.float32(wanted).tolist())
        assert run.series["step_time"].values.tolist() == [0.25] * 30
        assert np.flatnonzero(np.isnan(run.series["grad_norm"].values)).tolist() == [6]
        assert (run.nan_steps, run.completed) == (1, True)
        assert "taken as finished at step 30" in found["notes"][-1]


def events(folder: Path) -> Path:
    """As Transformers' own callback writes it: an event per scalar, and others between them."""
    with SummaryWriter(str(folder)) as writer:
        writer.add_text("args", "{}")
        for step in range(1, 21):
            writer.add_scalar("train/loss", loss(step), step)
            writer.add_scalar("train/grad_norm", 1.0, step)
        writer.add_histogram("weights", np.arange(10), 20)
        writer.add_scalar("eval/loss", 0.5, 20)
    (path,) = folder.glob("*tfevents*")
    return path


def test_tensorboard_of_any_trainer(tmp_path: Path) -> None:
    path = events(tmp_path)
    for place in (path, tmp_path):
        history = read_history(place)
        assert history.kind == "tensorboard"
        assert {name: len(series.values) for name, series in history.series.items()} == {
            "loss": 20,
            "grad_norm": 20,
            "eval_loss": 1,
        }


def test_an_event_file_that_was_cut_off_is_read_to_there(tmp_path: Path) -> None:
    path = events(tmp_path)
    path.write_bytes(path.read_bytes()[:-10])
    assert "cut off" in read_history(path).notes[0]
    assert "eval_loss" not in read_history(path).series


def test_the_same_content_is_imported_once(shared: Any, tmp_path: Path) -> None:
    path = trainer_state(tmp_path)
    (first,) = imported(shared, path)
    copy = tmp_path / "copy.json"
    copy.write_bytes(path.read_bytes())
    before = count(shared)
    again = imported(shared, path, copy)
    assert [item["run_id"] for item in again] == [first["run_id"]] * 2
    assert all(item["imported_before"] for item in again)
    assert count(shared) == before
    assert "imported before as run" in canary("import", path, "--tracking-uri", shared.uri).stdout


def test_a_training_that_repeats_bit_for_bit_is_a_run_of_both_sides(shared: Any, tmp_path: Path) -> None:
    """Lightning's metrics.csv has no times: unchanged code gives the same file, and had no session to be judged as."""
    path = trainer_state(tmp_path)
    made = {name: imported(shared, path, "--session", name)[0] for name in ("before", "after")}
    assert len({found["session_id"] for found in made.values()} - {None}) == 2
    (again,) = imported(shared, path, "--session", "after")
    assert (again["imported_before"], again["run_id"]) == (True, made["after"]["run_id"])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty"),
        ('{"log_history": [{"step": 1, "loss": 0.5}', "is cut off"),
        ('{"max_steps": 10}', "no step in any line"),
        ("hello\n", "neither JSON nor CSV"),
    ],
)
def test_one_bad_file_and_nothing_is_written(shared: Any, tmp_path: Path, content: str, expected: str) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(content)
    before = count(shared)
    result = canary("import", trainer_state(tmp_path), bad, "--tracking-uri", shared.uri)
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert expected in result.stderr
    assert count(shared) == before


def test_a_store_that_fails_half_way_keeps_no_half_run(
    shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise MlflowException("disk full")

    before = count(shared)
    monkeypatch.setattr(imports, "log_tags", fail)
    path = trainer_state(tmp_path)
    result = canary("import", path, "--tracking-uri", shared.uri)
    assert (result.exit_code, count(shared)) == (4, before)
    assert result.stderr.strip().endswith("trainer_state.json: not imported: disk full")
    monkeypatch.undo()
    assert not imported(shared, path)[0]["imported_before"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--workload", "model"), "--workload: found 'model'; expected KEY=VALUE"),
        (("--seed", "1"), "--seed 1 with 2 files"),
    ],
)
def test_wrong_options_are_one_line(shared: Any, tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    files = [trainer_state(tmp_path, name) for name in ("a.json", "b.json")]
    result = canary("import", *files, *words, "--tracking-uri", shared.uri)
    assert result.exit_code == 2
    assert expected in result.stderr


def compared(shared: Any, left: str, right: str) -> dict[str, Any]:
    result = canary("compare", left, right, "--policy", "smoke", "--json", "--tracking-uri", shared.uri)
    assert result.exit_code == 0, result.stderr
    verdict: dict[str, Any] = json.loads(result.stdout)["verdict"]
    return verdict


def test_runs_of_unknown_work_are_comparable_with_none(shared: Any, tmp_path: Path) -> None:
    one, other = (
        imported(shared, trainer_state(tmp_path, name, grad_norm=norm))[0]["run_id"]
        for name, norm in (("one.json", 1.1), ("other.json", 1.2))
    )
    verdict = compared(shared, one, other)
    assert (verdict["outcome"], verdict["reason_code"]) == ("INCONCLUSIVE", "not-comparable")
    assert "imported: not stated" in verdict["reason"]


def test_stated_work_is_compared_and_what_is_missing_named(shared: Any, tmp_path: Path) -> None:
    sides = []
    for side, worse in (("before", 1.0), ("after", 3.0)):
        files = []
        for seed in range(2):
            path = tmp_path / f"{side}-{seed}.csv"
            rows = [f"{step},{worse * loss(step) + 1e-3 * seed},{0.1 + 1e-4 * seed}" for step in range(1, STEPS + 1)]
            path.write_text("\n".join(["step,loss,step_time", *rows]))
            files.append(path)
        found = imported(shared, *files, *FACTS, "--algo", "sft", "--session", side)
        sides.append(found[0]["session_id"])
    verdict = compared(shared, *sides)
    checks = {check["metric"]: check for check in verdict["checks"]}
    assert checks["step_time"]["outcome"] == "PASS"
    assert checks["loss"]["outcome"] in ("WARN", "BLOCK")
    assert checks["eval_loss"]["outcome"] != "PASS"
    assert "evaluation loss was not recorded" in checks["eval_loss"]["reason"]
