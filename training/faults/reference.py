"""A fault of the reference model: it is not what training started from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import UsageError
from canary_mlflow.training.config import CanaryConfig, FaultConfig
from canary_mlflow.training.faults.fault import ANY_AMOUNT, Fault

if TYPE_CHECKING:
    from torch import nn


class WrongReference(Fault):
    """Every weight matrix of the reference model gets noise of `strength` times its own standard deviation."""

    strengths = ANY_AMOUNT

    def check(self, config: CanaryConfig) -> None:
        if config.adapter.name != "full":
            raise UsageError(
                f"fault={config.fault.name} with adapter={config.adapter.name}: there the reference is the policy "
                "without its adapter, not another model; expected adapter=full"
            )

    def install(self, trainer: Any, fault: FaultConfig) -> None:
        assert fault.strength is not None
        # Our PPO's name for it, and TRL's.
        _disturb(trainer.reference if hasattr(trainer, "reference") else trainer.ref_model, fault.strength)


def _disturb(model: nn.Module, strength: float) -> None:
    import torch

    generator = torch.Generator().manual_seed(0)  # separate, so that training's random numbers do not change
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:  # norms and biases may be constant, and then have no spread
                noise = torch.randn(weight.shape, generator=generator).to(weight)
                weight.add_(noise * strength * weight.std())
