"""REINFORCE leave-one-out through TRL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import MISSING

from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.groups import GroupSettings

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

    from canary_mlflow.training.devices import Device
    from canary_mlflow.training.parts import Parts

STACK = ("trl.trainer.rloo_trainer", "canary_mlflow.training.group_trainer")


@dataclass
class Settings(GroupSettings):
    """REINFORCE leave-one-out (trl.RLOOTrainer): the KL is taken from an answer's reward, not added to the loss."""

    normalize_advantages: bool = MISSING  # over the batch

    def work(self) -> dict[str, str]:
        return {**super().work(), "normalize_advantages": str(self.normalize_advantages)}


def build(
    config: CanaryConfig, parts: Parts, device: Device, output_dir: Path, callbacks: list[TrainerCallback]
) -> Trainer:
    """An RLOOTrainer on the prompts of the data; train.batch_size counts answers."""
    from trl import RLOOConfig, RLOOTrainer

    from canary_mlflow.training.group_trainer import RepeatableEvaluation, group_arguments, group_parts

    class CanaryRLOO(RepeatableEvaluation, RLOOTrainer):
        pass

    arguments = RLOOConfig(
        **group_arguments(RLOOConfig, config, output_dir, device), normalize_advantages=config.algo.normalize_advantages
    )
    return CanaryRLOO(args=arguments, callbacks=callbacks, **group_parts(config, parts, device))
