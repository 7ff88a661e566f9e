"""Proximal policy optimisation with our own trainer (TRL has none since 1.13)."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback

from training.arguments import checkpointing, common_arguments
from training.config import CanaryConfig, PPOAlgo
from training.devices import Device
from training.parts import Parts
from training.ppo.settings import PPOConfig
from training.ppo.trainer import PPOTrainer
from training.reward_model import reward_folder
from training.rewards import RewardSpec, build_reward


def build(
    config: CanaryConfig, parts: Parts, device: Device, output_dir: Path, callbacks: list[TrainerCallback]
) -> Trainer:
    """A PPOTrainer on the prompts of the preference data.

    train.max_steps counts PPO iterations and train.batch_size the answers of one iteration per
    device; warm-up counts optimizer steps, of which an iteration has ppo_epochs x num_minibatches.
    """
    spec = {item.name: getattr(config.algo.reward, item.name) for item in fields(RewardSpec)}
    if spec["kind"] == "model" and spec["path"]:
        spec["path"] = str(reward_folder(spec["path"]))  # the files that the workload names
    reward = build_reward(
        RewardSpec(**spec),
        parts.tokenizer,
        torch.device(device.kind),
    )
    return PPOTrainer(
        model=parts.model,
        args=arguments(config, output_dir, device),
        tokenizer=parts.tokenizer,
        train_prompts=parts.train_dataset["prompt"],
        eval_prompts=parts.eval_dataset["prompt"],
        reward=reward,
        peft_config=parts.peft_config,
        callbacks=callbacks,
    )


def arguments(config: CanaryConfig, output_dir: Path, device: Device) -> PPOConfig:
    """The configuration in PPOConfig's terms."""
    common = common_arguments(config, output_dir, device)
    iterations, rows = common.pop("max_steps"), common.pop("per_device_train_batch_size")
    knobs = {item.name: getattr(config.algo, item.name) for item in fields(PPOAlgo)}
    del knobs["name"], knobs["reward"]
    return PPOConfig(**common, **checkpointing(enabled=False), **knobs, iterations=iterations, rollout_batch_size=rows)
