"""Faults of memory, which is held without use. Every page is written to, because untouched pages take no memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canary_mlflow.training.config import FaultConfig
from canary_mlflow.training.faults.fault import ANY_AMOUNT, Fault

if TYPE_CHECKING:
    import torch
    from transformers import Trainer

MIB = 2**20


class MemoryLeak(Fault):
    """`strength` MiB more are held after each optimizer step, on the device that trains."""

    strengths = ANY_AMOUNT

    def install(self, trainer: Trainer, fault: FaultConfig) -> None:
        from canary_mlflow.training.faults.pace import Calls

        held: list[torch.Tensor] = []
        trainer.add_callback(Calls(on_step_end=lambda: held.append(_block(trainer, fault.strength or 0.0))))


class MemoryBallast(Fault):
    """After `step` optimizer steps, `strength` times the peak so far is allocated at once and held until the end."""

    strengths = ANY_AMOUNT

    def install(self, trainer: Trainer, fault: FaultConfig) -> None:
        from canary_mlflow.training.faults.pace import Calls

        held: list[torch.Tensor] = []

        def load() -> None:
            if not held and trainer.state.global_step >= fault.step:
                held.append(_block(trainer, (fault.strength or 0.0) * _peak(trainer)))

        trainer.add_callback(Calls(on_step_end=load))


def _block(trainer: Trainer, mib: float) -> torch.Tensor:
    import torch

    return torch.ones(max(1, round(mib * MIB)), dtype=torch.uint8, device=trainer.args.device)


def _peak(trainer: Trainer) -> float:
    """The peak so far in MiB, as the run itself measures it."""
    if trainer.args.device.type == "cuda":
        import torch

        return float(torch.cuda.max_memory_allocated(trainer.args.device)) / MIB
    from canary_mlflow.tracking.probes.memory import resident_peak

    return resident_peak()
