"""Group relative policy optimisation through TRL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import MISSING

from canary_mlflow.training import values
from canary_mlflow.training.config import CanaryConfig, TrainConfig
from canary_mlflow.training.groups import GroupSettings

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

    from canary_mlflow.training.devices import Device
    from canary_mlflow.training.parts import Parts

STACK = ("trl.trainer.grpo_trainer", "canary_mlflow.training.group_trainer")
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo")


@dataclass
class Settings(GroupSettings):
    """Group relative policy optimisation (trl.GRPOTrainer)."""

    loss_type: str = MISSING  # how the loss is averaged over tokens
    scale_rewards: str = MISSING  # group | batch | none: whose spread divides the advantages

    def check(self, train: TrainConfig) -> None:
        super().check(train)
        values.one_of("algo.loss_type", self.loss_type, LOSSES)
        values.one_of("algo.scale_rewards", self.scale_rewards, ("group", "batch", "none"))

    def work(self) -> dict[str, str]:
        return {**super().work(), "loss_type": self.loss_type, "scale_rewards": self.scale_rewards}


def build(
    config: CanaryConfig, parts: Parts, device: Device, output_dir: Path, callbacks: list[TrainerCallback]
) -> Trainer:
    """A GRPOTrainer on the prompts of the data; train.batch_size counts answers."""
    from trl import GRPOConfig, GRPOTrainer

    from canary_mlflow.training.group_trainer import RepeatableEvaluation, group_arguments, group_parts

    class CanaryGRPO(RepeatableEvaluation, GRPOTrainer):
        pass

    arguments = GRPOConfig(
        **group_arguments(GRPOConfig, config, output_dir, device),
        loss_type=config.algo.loss_type,
        scale_rewards=config.algo.scale_rewards,
    )
    return CanaryGRPO(args=arguments, callbacks=callbacks, **group_parts(config, parts, device))
