"""Supervised fine-tuning through TRL."""

from __future__ import annotations

from pathlib import Path

from transformers import Trainer, TrainerCallback
from trl import SFTConfig, SFTTrainer

from training.arguments import checkpointing, common_arguments
from training.config import CanaryConfig
from training.datasets import as_completions
from training.devices import Device
from training.parts import Parts


def build(
    config: CanaryConfig, parts: Parts, device: Device, output_dir: Path, callbacks: list[TrainerCallback]
) -> Trainer:
    """An SFTTrainer on prompt + chosen answer, with the loss on the answer alone."""
    arguments = SFTConfig(
        **common_arguments(config, output_dir, device),
        **checkpointing(enabled=False),
        max_length=config.train.max_length,
        completion_only_loss=True,
        packing=False,
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
