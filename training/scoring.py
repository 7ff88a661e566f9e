"""From the settings of a reward to the function that scores answers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from training.reward_config import RewardConfig
from training.reward_model import reward_folder
from training.rewards import Reward, RewardSpec, build_reward


def reward_of(config: RewardConfig, tokenizer: Any, device: str) -> Reward:
    """The reward that the configuration asks for, on a device of torch's. Raises SetupError where there is none."""
    spec = {item.name: getattr(config, item.name) for item in fields(RewardSpec)}
    if spec["kind"] == "model" and spec["path"]:
        spec["path"] = str(reward_folder(spec["path"]))  # the files that the workload names
    return build_reward(RewardSpec(**spec), tokenizer, torch.device(device))
