"""The values of one metric while its file is read."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from math import isnan


class Column:
    """The values of one metric so far, their steps strictly rising."""

    __slots__ = ("_twice", "changed", "doubled", "last", "name", "restarts", "returned", "steps", "texts", "values")

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = array("q")
        self.values = array("d")
        self.last = -1
        self.doubled = 0  # steps with more than one row
        self.changed = 0  # of these, with another value
        self._twice = -1
        self.texts = 0
        self.restarts = 0
        self.returned = (0, 0, 0)  # row, from step, to step: the first time that steps went back

    @property
    def of_training(self) -> bool:
        """Whether a training writes it itself: an evaluator beside it may be late, and a foreign column be anything."""
        return self.name in ("loss", "step_time", "grad_norm", "learning_rate", "tokens", "reward_mean")

    def rewind(self, step: int, value: float, row: int) -> bool:
        """Forget what stands at `step` and after it: the row that comes now, with `value`, was written later. True if
        steps went back there, and not just to the same one."""
        if step == self.last:
            if step != self._twice:
                self.doubled += 1
                self.changed += value != self.values[-1] and not (isnan(value) and isnan(self.values[-1]))
            self._twice = step
        else:
            if not self.restarts:
                self.returned = (row, self.last, step)
            self.restarts += 1
        back = step < self.last
        self.forget(step)
        return back

    def forget(self, step: int) -> None:
        """Drop what stands at `step` and after it."""
        keep = bisect_left(self.steps, step)
        del self.steps[keep:]
        del self.values[keep:]
        self.last = self.steps[-1] if self.steps else -1
