"""Files that can be read in two ways: several trainings in one, columns of nearly one name, words beside numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
from history_files import lines, values, write

from canary_mlflow.errors import UsageError
from canary_mlflow.files.reading import read_history
from canary_mlflow.files.replaying import replay_file
from canary_mlflow.policies import load_watch


def falling(count: int, first: int = 1, **more: Any) -> list[dict[str, Any]]:
    random = Random(1)
    return [
        {"step": step, "loss": round(3 * math.exp(-step / 100) + 0.1 * random.random(), 4), **more}
        for step in range(first, first + count)
    ]


def test_a_summary_at_step_0_behind_a_training_is_not_a_training(tmp_path: Path) -> None:
    rows = [*falling(150), *(row | {"loss": math.nan} for row in falling(50, 151)), {"step": 0, "loss": 0.8}]
    path = write(tmp_path, "log.jsonl", lines(rows))
    assert replay_file(path, load_watch("default")).verdict == "failed"
    assert "1 line at the end left out: steps begin again there" in read_history(path).notes


def test_rows_in_no_order_are_not_read_as_many_trainings(tmp_path: Path) -> None:
    rows = falling(60)
    Random(1).shuffle(rows)
    with pytest.raises(UsageError, match=r"steps go back \d+ times"):
        read_history(write(tmp_path, "log.jsonl", lines(rows)))


def test_a_phase_of_evaluation_hides_no_divergence(tmp_path: Path) -> None:
    """What is normal is learned anew at a stage: the evaluation's first row begins none."""
    rows: list[dict[str, Any]] = []
    for row in falling(600, phase="train"):
        late = row["step"] > 300
        rows.append(row | {"loss": 0.8 + row["loss"] + 1.5 * late, "grad_norm": 9.0 if late else 1.0})
        if row["step"] == 300:
            rows.append({"step": 300, "eval_loss": 0.9, "phase": "eval"})
    assert replay_file(write(tmp_path, "log.jsonl", lines(rows)), load_watch("default")).verdict == "failed"


@pytest.mark.parametrize("words", [[0.1, 0.2], "accuracy,format"])
def test_lists_and_words_under_a_plural_are_no_metric(tmp_path: Path, words: object) -> None:
    """The rewards of a group, or the names of the reward functions."""
    path = write(tmp_path, "log.jsonl", lines(falling(60, rewards=words)))
    assert len(values(read_history(path), "loss")) == 60


def test_json_in_another_encoding_gets_no_steps_of_its_own(tmp_path: Path) -> None:
    rows = [row | {"note": "é"} for row in falling(30, 10)]
    text = json.dumps({"log_history": rows}, ensure_ascii=False, indent=1)
    with pytest.raises(UsageError, match="UTF-8"):
        read_history(write(tmp_path, "state.json", text.encode("latin-1")))


def test_a_stage_that_is_missing_now_and_then_is_no_other_stage(tmp_path: Path) -> None:
    rows = [
        {"step": step, "reward": step / 100 if step < 150 else 0.1 + step % 3 / 100, "curriculum_stage": 1.0}
        for step in range(1, 200)
    ]
    for row in rows[::15]:
        row["curriculum_stage"] = math.nan
    found = replay_file(write(tmp_path, "log.jsonl", lines(rows)), load_watch("default"), algo="grpo")
    assert found.verdict == "failed"


def test_single_rewards_that_are_no_number_are_not_added_up_to_a_stop(tmp_path: Path) -> None:
    random = Random(1)
    rows = [
        {"step": step, "loss": 0.05 * random.random(), "reward": step / 300 + random.gauss(0, 0.05), "entropy": 2.0}
        for step in range(1, 601)
    ]
    for row in rows[79::40]:
        row["reward"] = math.nan
    found = replay_file(write(tmp_path, "log.jsonl", lines(rows)), load_watch("default"), algo="grpo")
    assert found.verdict == "critical"
    assert "STOP" not in {one.level.name for one in found.warnings}
