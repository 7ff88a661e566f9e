"""Direct preference optimisation through TRL."""

from __future__ import annotations

from pathlib import Path

from transformers import Trainer, TrainerCallback
from trl import DPOConfig, DPOTrainer

from training.arguments import checkpointing, common_arguments
from training.config import CanaryConfig
from training.devices import Device
from training.parts import Parts


def build(
    config: CanaryConfig, parts: Parts, device: Device, output_dir: Path, callbacks: list[TrainerCallback]
) -> Trainer:
    """A DPOTrainer whose reference is the start model: a frozen copy, or the disabled adapter."""
    arguments = DPOConfig(
        **common_arguments(config, output_dir, device),
        **checkpointing(enabled=False),
        beta=config.algo.beta,
        loss_type=[config.algo.loss_type],
        max_length=config.train.max_length,
    )
    return DPOTrainer(
        model=parts.model,
        args=arguments,
        processing_class=parts.tokenizer,
        train_dataset=parts.train_dataset,
        eval_dataset=parts.eval_dataset,
        peft_config=parts.peft_config,
        callbacks=callbacks,
    )
