"""A reward model through TRL: a score for each answer, learned from pairs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from omegaconf import MISSING

from canary_mlflow.training.config import Algo, CanaryConfig

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

    from canary_mlflow.training.devices import Device
    from canary_mlflow.training.parts import Parts

STACK = ("trl.trainer.reward_trainer", "canary_mlflow.training.arguments")


@dataclass
class Settings(Algo):
    """A reward model after Bradley and Terry (trl.RewardTrainer)."""

    head: ClassVar[str] = "score"
    reads: ClassVar[str] = "pair"
    like: str = MISSING  # the algorithm whose steps and learning rate apply if tier and model have none for this one


def build(
    config: CanaryConfig, parts: Parts, device: Device, output_dir: Path, callbacks: list[TrainerCallback]
) -> Trainer:
    """A RewardTrainer on the pairs; the model has a new head that gives one score."""
    from trl import RewardConfig, RewardTrainer

    from canary_mlflow.training.arguments import trainer_arguments

    arguments = RewardConfig(
        **trainer_arguments(config, output_dir, device, max_length=config.train.max_length),
    )
    return RewardTrainer(
        model=parts.model,
        args=arguments,
        processing_class=parts.tokenizer,
        train_dataset=parts.train_dataset,
        eval_dataset=parts.eval_dataset,
        peft_config=parts.peft_config,
        callbacks=callbacks,
    )
