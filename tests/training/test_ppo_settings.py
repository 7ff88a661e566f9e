"""PPOConfig: sizes that follow from each other, and settings that cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.ppo.settings import PPOConfig


def _config(folder: Path, **options: Any) -> PPOConfig:
    return PPOConfig(output_dir=str(folder), use_cpu=True, report_to="none", save_strategy="no", **options)


def test_sizes_follow_from_rows_minibatches_and_accumulation(tmp_path: Path) -> None:
    args = _config(
        tmp_path, iterations=7, rollout_batch_size=24, ppo_epochs=3, num_minibatches=2, gradient_accumulation_steps=4
    )
    assert args.per_device_train_batch_size == 3
    assert args.updates_per_iteration == 6
    assert args.micro_batches_per_iteration == 24
    assert args.num_train_epochs == 7
    assert args.max_steps == -1


def test_the_log_hides_nothing(tmp_path: Path) -> None:
    args = _config(tmp_path, logging_nan_inf_filter=True, logging_steps=50)
    assert args.logging_nan_inf_filter is False
    assert args.logging_steps == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rollout_batch_size": 10, "num_minibatches": 4}, "multiple of 4"),
        ({"rollout_batch_size": 8, "gradient_accumulation_steps": 3}, "multiple of 3"),
        ({"save_strategy": "steps"}, "save_strategy"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words) as caught:
        PPOConfig(output_dir=str(tmp_path), use_cpu=True, report_to="none", **{"save_strategy": "no"} | options)
    assert "\n" not in str(caught.value)
    assert "expected" in str(caught.value)
