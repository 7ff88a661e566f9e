"""The adaptive KL coefficient of Ziegler et al. 2019, section 2.2, as a callback that checkpoints itself."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState


class AdaptiveKL(TrainerCallback, ExportableState):
    """Moves the coefficient by at most 20 % x sequences / horizon per iteration, towards the target KL.

    sequences: rows per iteration over all ranks; target: nats per sequence, None for a fixed
    coefficient; horizon: sequences. Holds no reference to the trainer: Trainer calls state()
    while it is being constructed, and replaces the object when it resumes from a checkpoint.
    """

    def __init__(self, initial: float, target: float | None, horizon: int, sequences: int) -> None:
        self.initial = initial
        self.target = target
        self.horizon = horizon
        self.sequences = sequences
        self.value = initial

    def state(self) -> dict[str, Any]:
        """What Trainer needs to build this object again."""
        arguments = {name: getattr(self, name) for name in ("initial", "target", "horizon", "sequences")}
        return {"args": arguments, "attributes": {"value": self.value}}

    def update(self, kl: float) -> None:
        """Move the coefficient by the KL of one iteration, in nats per sequence."""
        if self.target is None:
            return
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.value *= 1 + error * self.sequences / self.horizon

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Update from the KL in an iteration's row, so that the coefficient moves before the next rollout."""
        if logs and "kl" in logs:
            self.update(logs["kl"])
