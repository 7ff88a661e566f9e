"""The embedded PPO canary learns with the values it ships, and its faults show."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from tiny_ppo import iterations_of
from transformers import PrinterCallback, set_seed

from canary_mlflow.training import faults
from canary_mlflow.training.algorithms import build
from canary_mlflow.training.building import EvaluateAtEnd
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.devices import settle
from canary_mlflow.training.errors import InstabilityError
from canary_mlflow.training.parts import build_parts
from canary_mlflow.training.ppo.trainer import PPOTrainer


def _canary(folder: Path, *overrides: str) -> PPOTrainer:
    """What `python -m training algo=ppo tier=smoke hardware=cpu …` trains."""
    register_schemas()
    config = check(parse(["algo=ppo", "tier=smoke", "hardware=cpu", *overrides]))[0]
    set_seed(config.seed)
    device = settle(config.hardware)
    parts = faults.prepare(build_parts(config, device), config.fault)
    trainer = build(faults.configure(config), parts, device, folder, [EvaluateAtEnd()])
    trainer.remove_callback(PrinterCallback)
    faults.install(trainer, config.fault)
    assert isinstance(trainer, PPOTrainer)
    return trainer


def _evaluations(trainer: PPOTrainer) -> list[dict[str, Any]]:
    return [row for row in trainer.state.log_history if "eval_reward" in row]


def test_the_reward_rises_and_the_kl_ends_near_its_target(tmp_path: Path) -> None:
    trainer = _canary(tmp_path, "seed=52")  # with a reward for length this seed never left its first score
    before = trainer.evaluate()["eval_reward"]
    trainer.train()
    rows = iterations_of(trainer)
    third = len(rows) // 3
    first, last = (mean(row["score_mean"] for row in part) for part in (rows[:third], rows[-third:]))
    kl = mean(row["kl"] for row in rows[-third:])
    after = _evaluations(trainer)[-1]
    print(f"score {first:.1f} -> {last:.1f}, held out {before:.1f} -> {after['eval_reward']:.1f}, KL {kl:.1f}")
    assert len(rows) == 50
    assert trainer.args.rollout_batch_size == 16  # conf/tier_algo has the last word on train.*
    assert last > first + 1.5
    assert after["eval_reward"] > before + 2
    assert 4 < kl < 13  # the target is 6; 50 iterations do not quite get there
    assert after["step"] == trainer.state.max_steps == 200
    assert max(row["first_kl_max_abs"] for row in rows) == 0.0


def test_configuration_reaches_the_trainer(tmp_path: Path) -> None:
    trainer = _canary(
        tmp_path,
        "adapter=lora",
        "train.max_steps=3",
        "train.batch_size=8",
        "train.gradient_accumulation_steps=2",
        "algo.ppo_epochs=3",
        "algo.num_minibatches=2",
        "algo.max_new_tokens=5",
        "algo.reward.kind=length",
        "algo.reward.target=4",
        "seed=7",
    )
    trainer.train()
    assert trainer.args.seed == 7
    assert trainer.state.global_step == 3 * 3 * 2
    rows = iterations_of(trainer)
    assert len(rows) == 3
    assert all(row["tokens_response"] <= 8 * 5 for row in rows)
    assert -10 <= rows[0]["score_mean"] <= 0  # between 1 and 5 tokens where 4 are wanted


def test_a_learning_rate_far_too_high_shows(tmp_path: Path) -> None:
    """Reward alone may look fine; KL and entropy do not."""
    trainer = _canary(tmp_path, "fault=lr_high", "train.max_steps=10")
    trainer.train()
    rows = iterations_of(trainer)
    assert max(row["kl"] for row in rows) > 40
    assert min(row["entropy"] for row in rows) < 0.1 * rows[0]["entropy"]


def test_a_nan_batch_ends_the_run_at_its_step(tmp_path: Path) -> None:
    with pytest.raises(InstabilityError, match="step 21: loss is nan"):
        _canary(tmp_path, "fault=nan_batch").train()
