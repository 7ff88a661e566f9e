"""Faults of what a training costs: time and memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from canary_mlflow.training.config import FaultConfig
from canary_mlflow.training.faults.fault import ANY_AMOUNT, Fault

if TYPE_CHECKING:
    import torch
    from transformers import Trainer

    from canary_mlflow.training.faults.pace import Pace


class SlowStep(Fault):
    """After `step` optimizer steps, each takes longer by `strength` times a healthy step."""

    strengths = ANY_AMOUNT

    def install(self, trainer: Trainer, fault: FaultConfig) -> None:
        from canary_mlflow.training.faults.pace import Calls, Pace

        assert fault.strength is not None
        pace, each = Pace(trainer), fault.strength

        def slow() -> None:
            if trainer.state.global_step >= fault.step:
                self.spend(pace, each / pace.steps)

        trainer.add_callback(Calls(on_optimizer_step=slow))

    def spend(self, pace: Pace, units: float) -> None:
        """Let as much time pass as `units` healthy units take."""
        pace.burn(units)


class StalledStep(SlowStep):
    """The same by sleeping, as for a disk or a network."""

    def spend(self, pace: Pace, units: float) -> None:
        time.sleep(pace.seconds(units))


class SlowLoader(Fault):
    """Fetching the data of a step takes `strength` times as long as the whole healthy step."""

    strengths = ANY_AMOUNT

    def install(self, trainer: Any, fault: FaultConfig) -> None:
        from canary_mlflow.training.faults.pace import Pace

        assert fault.strength is not None
        pace = Pace(trainer)
        prompts = getattr(trainer, "train_prompts", None)
        if prompts is not None:  # PPO fetches the prompts of an iteration at once
            prompts.batch = _slow(prompts.batch, pace, fault.strength)
            return
        get_loader, collator = trainer.get_train_dataloader, trainer.data_collator
        slow_collator = _slow(collator, pace, fault.strength / trainer.args.gradient_accumulation_steps)

        def slow_loader() -> Any:
            trainer.data_collator = slow_collator
            try:
                return get_loader()
            finally:
                trainer.data_collator = collator  # evaluation has its own loader

        trainer.get_train_dataloader = slow_loader


def _slow(fetch: Any, pace: Any, units: float) -> Any:
    def slow(*args: Any, **kwargs: Any) -> Any:
        pace.burn(units)
        return fetch(*args, **kwargs)

    return slow


class GCStorm(Fault):
    """`strength` full garbage collections in each optimizer step (0.2: one in every fifth), as TRL's PPOTrainer did."""

    strengths = ANY_AMOUNT

    def install(self, trainer: Trainer, fault: FaultConfig) -> None:
        import gc

        from canary_mlflow.training.faults.pace import Calls

        due = 0.0

        def collect() -> None:
            nonlocal due
            due += fault.strength or 0.0
            while due >= 1:
                gc.collect()
                due -= 1

        # The run's process has hidden everything loaded so far from the collector.
        trainer.add_callback(Calls(on_train_begin=gc.unfreeze, on_optimizer_step=collect))


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
