"""How long a healthy step takes, for faults that add a share of it, and how to burn that time."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

FIRST = 2  # units of work that are ignored: the first takes two to five times as long
SIDE = 1024  # of a kernel that burns time, some tens of µs


class Pace:
    """Measures a trainer's steps, without the time that is burnt and without other callbacks at a step's end.

    On a CPU in CPU time of this thread, which the policy judges there; on a GPU in wall time. A unit of work is an
    optimizer step; for PPO an iteration, because its rollout belongs to no single step.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.cuda = trainer.args.device.type == "cuda"
        self.steps = int(getattr(trainer.args, "updates_per_iteration", 1))  # per unit
        self.burnt = 0.0
        self.times: list[float] = []
        self._matrix: torch.Tensor | None = None
        self._sum = 0.0
        self._count = 0
        self._began = self._now()
        # One callback stops the clock before all others run, one starts it after them.
        trainer.callback_handler.callbacks.insert(0, Calls(on_step_end=self._stop))
        trainer.add_callback(Calls(on_train_begin=self._start, on_step_end=self._start))

    def seconds(self, units: float) -> float:
        """How long `units` healthy units take; 0 before a healthy unit was measured."""
        return units * statistics.median(self.times[FIRST:]) if len(self.times) > FIRST else 0.0

    def burn(self, units: float) -> None:
        """Compute for as long as `units` healthy units take, on a GPU by kernels."""
        began = self._now()
        until = began + self.seconds(units)
        while self._now() < until:
            self._compute()
        self.burnt += self._now() - began

    def _compute(self) -> None:
        if not self.cuda:
            sum(range(200))  # about 2 µs
            return
        if self._matrix is None:
            self._matrix = torch.zeros(SIDE, SIDE, device="cuda", dtype=torch.float16)
        self._matrix @ self._matrix

    def _now(self) -> float:
        """The time once the GPU is done: a step that is only launched looks short, and time burnt beside it is free."""
        if self.cuda:
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.thread_time()

    def _start(self) -> None:
        self._began, self.burnt = self._now(), 0.0

    def _stop(self) -> None:
        self._sum += self._now() - self._began - self.burnt
        self._count += 1
        if self._count == self.steps:
            self.times.append(self._sum)
            self._sum, self._count = 0.0, 0


class Calls(TrainerCallback):
    """Calls functions without arguments at the named events."""

    def __init__(self, **calls: Any) -> None:
        for event, function in calls.items():
            setattr(self, event, lambda *args, _function=function, **kwargs: _function())
