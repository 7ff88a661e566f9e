"""Regressions put in on purpose: each proves that some check sees what it claims to see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import Trainer

from training.config import FaultConfig


def nan_batch(trainer: Trainer, fault: FaultConfig) -> None:
    """The loss of the batch after `step` optimizer steps is NaN, and its gradients with it."""
    compute_loss = trainer.compute_loss

    def poisoned(*args: Any, **kwargs: Any) -> Any:
        result = compute_loss(*args, **kwargs)
        # Evaluation has no gradients; the fault is one of training.
        if trainer.state.global_step != fault.step or not torch.is_grad_enabled():
            return result
        if isinstance(result, tuple):
            return (result[0] * float("nan"), *result[1:])
        return result * float("nan")

    trainer.compute_loss = poisoned  # type: ignore[method-assign]


def lr_high(trainer: Trainer, fault: FaultConfig) -> None:
    """The learning rate is `factor` times what the configuration says."""
    trainer.args.learning_rate *= fault.factor


FAULTS: dict[str, Callable[[Trainer, FaultConfig], None]] = {
    "none": lambda trainer, fault: None,
    "nan_batch": nan_batch,
    "lr_high": lr_high,
}


def apply(trainer: Trainer, fault: FaultConfig) -> None:
    """Build the configured fault into a trainer that has not started."""
    FAULTS[fault.name](trainer, fault)
