"""Files as teams have them: without seeds or times, a folder of TensorBoard's, cells with units, a bar that stands."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tensorboardX import SummaryWriter

from canary_mlflow.cli import canary
from canary_mlflow.files.runs import read_run

LOGS = Path(__file__).resolve().parents[1] / "data/logs"


def logs(name: str) -> list[Path]:
    return sorted(LOGS.glob(name))


def copies(paths: list[Path], folder: Path) -> list[Path]:
    """The same bytes under other names."""
    folder.mkdir(parents=True)
    return [Path(shutil.copy(path, folder)) for path in paths]


def answer(*words: object) -> Result:
    return CliRunner().invoke(canary, [*map(str, words)], catch_exceptions=False)


def judged(baseline: list[Path], candidate: list[Path], policy: str = "files") -> tuple[int, dict[str, Any]]:
    words = ("judge", "--baseline", *baseline, "--candidate", *candidate, "--policy", policy, "--json")
    result = answer(*words)
    return result.exit_code, json.loads(result.stdout)["verdict"]


def check(verdict: dict[str, Any], metric: str) -> Any:
    return next(one for one in verdict["checks"] if one["metric"] == metric)


def test_files_without_seeds_that_repeat_each_other_pass_by_identity_and_may_be_copies(tmp_path: Path) -> None:
    baseline = logs("untimed-*.csv")
    code, verdict = judged(baseline, copies(baseline, tmp_path / "after"))
    assert (code, verdict["outcome"], check(verdict, "loss")["evidence"]["identical"]) == (0, "PASS", True)
    assert verdict["notes"][0].startswith("3 of 3 candidate files with the values of the baseline's, to the bit")
    assert "or copies of the same files; without step times nothing tells which" in verdict["notes"][0]


def test_one_that_differs_is_no_identity_and_the_missing_seed_is_named(tmp_path: Path) -> None:
    baseline = logs("untimed-*.csv")
    candidate = copies(baseline[:2], tmp_path / "after")
    other = tmp_path / "other.csv"
    other.write_text("".join(f"{line.rstrip()}1\n" if line[0].isdigit() else line for line in baseline[2].open()))
    code, verdict = judged(baseline, [*candidate, other])
    assert (code, check(verdict, "loss")["evidence"]["identical"]) == (3, False)
    assert verdict["notes"][0].startswith("2 of 3 candidate files with the values")
    assert verdict["notes"][1].startswith('no seed is known of 6 files: with {"seed": 0} in ')
    assert f"{baseline[0].with_suffix('.json')}, and so on, runs of one seed are compared" in verdict["notes"][1]
    _, verdict = judged(baseline, [candidate[0], *copies(baseline[:1], tmp_path / "again")])
    assert not check(verdict, "loss")["evidence"]["identical"], "one training twice is not two"


def test_a_copy_with_the_same_times_is_called_one(tmp_path: Path) -> None:
    baseline = logs("cells-*.csv")
    code, verdict = judged(baseline, copies(baseline, tmp_path / "after"))
    assert (code, verdict["reason_code"]) == (3, "missing-data")
    assert f"(run {tmp_path}/after/cells-0.csv, with the same time of every step: a copy)" in verdict["reason"]


def test_one_file_for_both_sides_is_one_line(tmp_path: Path) -> None:
    one, *others = logs("untimed-*.csv")
    (tmp_path / "link.csv").symlink_to(one)
    for again in (one, tmp_path / "link.csv"):
        result = answer("judge", "--baseline", one, *others, "--candidate", again, "--policy", "files")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            f"canary: {again}: given as baseline and as candidate; expected files of two trainings; "
            "give the candidate's own\n"
        )


def events(folder: Path, seed: int, slow: float = 1.0) -> None:
    """As TRL's PPOTrainer writes it, to 0.11."""
    rng = np.random.default_rng(seed)
    with SummaryWriter(str(folder)) as writer:
        for step in range(90):
            writer.add_scalar("ppo/loss/policy", 0.5 - 0.004 * step + rng.normal(0, 0.002), step)
            writer.add_scalar("ppo/mean_scores", 1 + step / 20 + rng.normal(0, 0.02), step)
            writer.add_scalar("time/ppo/total", slow * (0.25 + rng.normal(0, 0.002)), step)


def test_a_folder_of_tensorboards_holds_a_run_in_each_of_its_folders(tmp_path: Path) -> None:
    for seed in range(3):
        events(tmp_path / "before" / f"seed-{seed}", seed)
        events(tmp_path / "after" / f"seed-{seed}", 10 + seed)
        events(tmp_path / "slow" / f"seed-{seed}", 20 + seed, slow=1.6)
        events(tmp_path / "before" / f"seed-{seed}" / "hparams", seed)  # of the run above it
    code, verdict = judged([tmp_path / "before"], [tmp_path / "after"], "perf")
    assert (code, verdict["outcome"], len(verdict["baseline_runs"])) == (0, "PASS", 3), verdict["reason"]
    assert check(verdict, "step_time")["evidence"]["baseline"] == pytest.approx(0.25, rel=0.01)
    code, verdict = judged([tmp_path / "before"], [tmp_path / "slow"], "perf")
    assert (code, check(verdict, "step_time")["outcome"]) == (1, "BLOCK")
    replayed = answer("replay", tmp_path / "before")
    said = [line.split()[:2] for line in replayed.stdout.splitlines() if line.startswith("healthy")]
    assert said == [["healthy", f"{tmp_path}/before/seed-{seed}"] for seed in range(3)]
    (tmp_path / "empty").mkdir()
    result = answer("replay", tmp_path / "empty")
    expected = "is a folder; expected a file, or TensorBoard's event files in it; name the history"
    assert (result.exit_code, result.stderr) == (2, f"canary: {tmp_path}/empty: {expected}\n")


def test_a_bare_sec_is_a_steps_time_and_cells_may_have_their_unit() -> None:
    run, _ = read_run(LOGS / "cells-0.csv")
    assert run.series["step_time"].values.mean() == pytest.approx(0.25, rel=0.01)
    assert run.series["peak_memory"].values.mean() == pytest.approx(78 * 1024, rel=0.01)


def test_one_unit_for_all_cells(tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.csv"
    with LOGS.joinpath("cells-0.csv").open() as file, mixed.open("w") as out:
        rows = list(csv.reader(file))
        rows[9][3] = "900MiB"
        csv.writer(out).writerows(rows)
    run, notes = read_run(mixed)
    assert "peak_memory" not in run.series
    assert any(note == "partly text, left out: memory" for note in notes)


def test_a_bar_that_stands_is_no_healthy_training_to_its_end() -> None:
    lines = answer("replay", *(LOGS / name for name in ("bar.log", "bar-stops.log", "bar-frozen.log"))).stdout
    assert f"healthy   {LOGS}/bar.log  (60 rows to step 60)" in lines
    assert f"healthy   {LOGS}/bar-stops.log  (30 rows to step 30)\n  note: ends at step 30 of 60" in lines
    assert f"unknown   {LOGS}/bar-frozen.log  (30 rows to step 60)\n  note: no loss after step 30, of 60" in lines
    code, verdict = judged([LOGS / "bar.log"], [LOGS / "bar-stops.log"])
    assert (code, verdict["reason_code"]) == (3, "broken-off")
    assert "the history ends at step 30 of 60" in verdict["reason"]
