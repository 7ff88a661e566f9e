"""The values of one metric while its file is read."""

from __future__ import annotations

from array import array
from bisect import bisect_left


class Column:
    """The values of one metric so far, their steps strictly rising."""

    __slots__ = ("doubled", "last", "name", "restarts", "returned", "steps", "texts", "values")

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = array("q")
        self.values = array("d")
        self.last = -1
        self.doubled = 0
        self.texts = 0
        self.restarts = 0
        self.returned = (0, 0, 0)  # row, from step, to step: the first time that steps went back

    def rewind(self, step: int, row: int) -> None:
        """Forget what stands at `step` and after it: the row that comes now was written later."""
        if step == self.last:
            self.doubled += 1
        else:
            if not self.restarts:
                self.returned = (row, self.last, step)
            self.restarts += 1
        keep = bisect_left(self.steps, step)
        del self.steps[keep:]
        del self.values[keep:]
