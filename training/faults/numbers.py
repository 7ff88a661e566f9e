"""Faults of arithmetic: a single NaN or infinity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from canary_mlflow.training.config import FaultConfig
from canary_mlflow.training.faults.fault import Fault

if TYPE_CHECKING:
    from transformers import Trainer


class NanBatch(Fault):
    """The loss of the batch after `step` optimizer steps is NaN, and its gradients with it."""

    def install(self, trainer: Trainer, fault: FaultConfig) -> None:
        import torch

        compute_loss = trainer.compute_loss

        def poisoned(*args: Any, **kwargs: Any) -> Any:
            result = compute_loss(*args, **kwargs)
            # Evaluation has no gradients; the fault strikes only in training.
            if trainer.state.global_step != fault.step or not torch.is_grad_enabled():
                return result
            if isinstance(result, tuple):
                return (result[0] * float("nan"), *result[1:])
            return result * float("nan")

        trainer.compute_loss = poisoned


class InfGradient(Fault):
    """One gradient of the batch after `step` optimizer steps is infinite; the loss looks normal.

    Clipping by norm does not help: it divides by infinity, and infinity times zero is NaN.
    """

    def install(self, trainer: Trainer, fault: FaultConfig) -> None:
        training_step = trainer.training_step

        def overflowing(model: Any, *args: Any, **kwargs: Any) -> Any:
            loss = training_step(model, *args, **kwargs)
            if trainer.state.global_step == fault.step:
                gradient = next(item.grad for item in model.parameters() if item.grad is not None)
                gradient.view(-1)[0] = float("inf")
            return loss

        trainer.training_step = overflowing
