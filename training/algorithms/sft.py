"""Supervised fine-tuning through TRL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow.training.config import Algo, CanaryConfig

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

    from canary_mlflow.training.devices import Device
    from canary_mlflow.training.parts import Parts

STACK = ("trl.trainer.sft_trainer", "canary_mlflow.training.arguments")


@dataclass
class Settings(Algo):
    """Supervised fine-tuning on prompt + chosen answer (trl.SFTTrainer)."""


def build(
    config: CanaryConfig, parts: Parts, device: Device, output_dir: Path, callbacks: list[TrainerCallback]
) -> Trainer:
    """An SFTTrainer on prompt + chosen answer, with the loss on the answer only."""
    from trl import SFTConfig, SFTTrainer

    from canary_mlflow.training.arguments import trainer_arguments
    from canary_mlflow.training.datasets import as_completions

    arguments = SFTConfig(
        **trainer_arguments(
            config,
            output_dir,
            device,
            max_length=config.train.max_length,
            completion_only_loss=True,
            packing=False,
        )
    )
    return SFTTrainer(
        model=parts.model,
        args=arguments,
        processing_class=parts.tokenizer,
        train_dataset=as_completions(parts.train_dataset),
        eval_dataset=as_completions(parts.eval_dataset),
        peft_config=parts.peft_config,
        callbacks=callbacks,
    )
