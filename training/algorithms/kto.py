"""Kahneman-Tversky optimisation through TRL."""

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

STACK = ("trl.trainer.kto_trainer", "canary_mlflow.training.arguments")
LOSSES = ("kto", "apo_zero_unpaired")


@dataclass
class Settings(Algo):
    """Kahneman-Tversky optimisation on single answers, each labelled good or bad (trl.KTOTrainer)."""

    reads: ClassVar[str] = "judged"
    like: str = MISSING  # the algorithm whose steps and learning rate apply if tier and model have none for this one
    beta: float = MISSING
    loss_type: str = MISSING
    desirable_weight: float = MISSING
    undesirable_weight: float = MISSING

    def check(self, train: TrainConfig) -> None:
        values.one_of("algo.loss_type", self.loss_type, LOSSES)
        for key in ("beta", "desirable_weight", "undesirable_weight"):
            values.positive(f"algo.{key}", getattr(self, key))
        values.at_least(
            "train.batch_size", train.batch_size, 2
        )  # its KL is estimated from mismatched prompts and answers

    def work(self) -> dict[str, str]:
        return {"loss_type": self.loss_type}


def build(
    config: CanaryConfig, parts: Parts, device: Device, output_dir: Path, callbacks: list[TrainerCallback]
) -> Trainer:
    """A KTOTrainer on both answers of each pair; its reference is the start model.

    TRL takes the rows in order, and estimates the KL from neighbours, so the order is drawn here, from the seed.
    """
    from trl import KTOConfig, KTOTrainer

    from canary_mlflow.training.arguments import trainer_arguments
    from canary_mlflow.training.datasets import as_judged

    algo = config.algo
    arguments = KTOConfig(
        **trainer_arguments(
            config,
            output_dir,
            device,
            beta=algo.beta,
            loss_type=algo.loss_type,
            desirable_weight=algo.desirable_weight,
            undesirable_weight=algo.undesirable_weight,
            max_length=config.train.max_length,
        )
    )
    return KTOTrainer(
        model=parts.model,
        args=arguments,
        processing_class=parts.tokenizer,
        train_dataset=as_judged(parts.train_dataset, seed=config.seed),
        eval_dataset=as_judged(parts.eval_dataset, seed=0),
        peft_config=parts.peft_config,
        callbacks=callbacks,
    )
