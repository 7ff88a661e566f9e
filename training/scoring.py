"""From the settings of rewards to the functions that score answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from training.config import CanaryConfig
from training.reward_config import RewardConfig, reads_columns
from training.reward_model import reward_folder
from training.rewards import Answers, Reward, RewardSpec, build_reward

if TYPE_CHECKING:
    from datasets import Dataset


def rewards_of(configs: Sequence[RewardConfig], tokenizer: Any, device: str) -> dict[str, Reward]:
    """The configured rewards, by the names of their series, on the torch `device`. Raises SetupError if one cannot be
    built."""
    found: dict[str, Reward] = {}
    for config in configs:
        name = str(config.path).rpartition(":")[2] if config.kind == "function" else config.kind
        count = sum(one.partition("-")[0] == name for one in found)
        found[f"{name}-{count + 1}" if count else name] = _reward_of(config, tokenizer, device)
    return found


def prompts_of(config: CanaryConfig, rows: Dataset) -> Dataset:
    """The rows' prompts; with the other columns if a function may read them."""
    return rows if reads_columns(config.algo.scored_by()) else rows.select_columns("prompt")


def sum_of(rewards: Sequence[Reward]) -> Reward:
    """All rewards as one, their sum; a single reward stays as it is."""
    if len(rewards) == 1:
        return rewards[0]

    def score(answers: Answers) -> torch.Tensor:
        return torch.stack([reward(answers) for reward in rewards]).sum(0)

    return score


def _reward_of(config: RewardConfig, tokenizer: Any, device: str) -> Reward:
    spec = {item.name: getattr(config, item.name) for item in fields(RewardSpec)}
    if spec["kind"] == "model" and spec["path"]:
        spec["path"] = str(reward_folder(spec["path"]))  # the files that the workload names
    return build_reward(RewardSpec(**spec), tokenizer, torch.device(device))
