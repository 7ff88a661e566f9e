"""Direct preference optimisation through TRL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from omegaconf import MISSING

from canary_mlflow.training import values
from canary_mlflow.training.config import Algo, CanaryConfig, TrainConfig

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

    from canary_mlflow.training.devices import Device
    from canary_mlflow.training.parts import Parts

STACK = ("trl.trainer.dpo_trainer", "canary_mlflow.training.arguments")
LOSSES = ("sigmoid", "hinge", "ipo", "robust", "apo_zero", "apo_down")


@dataclass
class Settings(Algo):
    """Direct preference optimisation (trl.DPOTrainer)."""

    reads: ClassVar[str] = "pair"
    beta: float = MISSING
    loss_type: str = MISSING

    def check(self, train: TrainConfig) -> None:
        values.one_of("algo.loss_type", self.loss_type, LOSSES)
        values.positive("algo.beta", self.beta)

    def work(self) -> dict[str, str]:
        return {"loss_type": self.loss_type}


def build(
    config: CanaryConfig, parts: Parts, device: Device, output_dir: Path, callbacks: list[TrainerCallback]
) -> Trainer:
    """A DPOTrainer whose reference is the start model: a frozen copy, or the disabled adapter."""
    from trl import DPOConfig, DPOTrainer

    from canary_mlflow.training.arguments import trainer_arguments

    arguments = DPOConfig(
        **trainer_arguments(
            config,
            output_dir,
            device,
            beta=config.algo.beta,
            loss_type=[config.algo.loss_type],
            max_length=config.train.max_length,
        )
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
