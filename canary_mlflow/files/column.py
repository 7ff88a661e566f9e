"""The values of one metric while its file is read."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from math import isclose, isnan

_SAME = 0.01  # share by which two ranks may differ that each write the mean of all
_BEHIND = 8  # rows that one of them may be behind the other
_ANEW = 0.1  # of the way: a checkpoint from which a training goes on is further than this


OF_TRAINING = frozenset(
    ("loss", "policy_loss", "step_time", "grad_norm", "learning_rate", "tokens", "reward_mean", "score_mean")
)


class Column:
    """The values of one metric so far, their steps strictly rising."""

    __slots__ = (
        "_twice",
        "anew",
        "changed",
        "doubled",
        "last",
        "name",
        "restarts",
        "returned",
        "steps",
        "texts",
        "values",
    )

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
        self.anew = 0  # of these, back to the first step
        self.returned = (0, 0, 0)  # row, from step, to step: the first time that steps went back

    @property
    def of_training(self) -> bool:
        """Whether a training writes it itself: an evaluator beside it may be late, and a foreign column be anything."""
        return self.name in OF_TRAINING

    def begins_anew(self, step: int) -> bool:
        """Whether a row of this step is the first of another training: it goes back to the beginning, or nearly, from
        far beyond. A training that goes on from a checkpoint goes back less."""
        if not len(self.steps) or step > self.last or step in self.steps[-2:] or self._behind(step):
            return False
        first = self.steps[0]
        return step - first <= _ANEW * (self.last - first)

    def _behind(self, step: int) -> bool:
        """Whether it is of a step not long ago, where most have two rows."""
        return 2 * self.doubled >= len(self.steps) and step in self.steps[-_BEHIND:]

    def repeats(self, step: int, value: float) -> bool:
        """Whether it is the row of a rank that is behind another."""
        if step >= self.last or not self._behind(step):
            return False
        self.doubled += 1
        self.changed += not self._alike(value, self.values[bisect_left(self.steps, step)])
        return True

    def rewind(self, step: int, value: float, row: int) -> bool:
        """Forget what stands at `step` and after it: the row that comes now, with `value`, was written later. True if
        steps went back there, and not just to the same one or to the one before."""
        at = bisect_left(self.steps, step)
        late = step in self.steps[-2:]  # also the row of a rank that is one row behind the other
        if late:
            before = self.values[at]
            if step != self._twice:
                self.doubled += 1
                self.changed += not self._alike(value, before)
            self._twice = step
        else:
            if not self.restarts:
                self.returned = (row, self.last, step)
            self.restarts += 1
            self.anew += at == 0
        self.forget(step)
        return not late

    @staticmethod
    def _alike(value: float, before: float) -> bool:
        return isclose(value, before, rel_tol=_SAME) or (isnan(value) and isnan(before))

    def forget(self, step: int) -> None:
        """Drop what stands at `step` and after it."""
        keep = bisect_left(self.steps, step)
        del self.steps[keep:]
        del self.values[keep:]
        self.last = self.steps[-1] if self.steps else -1
