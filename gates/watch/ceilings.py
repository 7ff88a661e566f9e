"""Fixed limits that a user sets. They are off unless set, because no number fits every scale."""

from __future__ import annotations

from collections.abc import Callable

from gates.model.wording import figure
from gates.watch.warning import Detection, Detector, Level

# The streams that can have a limit; entropy is the only one that must not fall below its limit.
CEILINGS = ("kl", "entropy", "grad_norm", "reward_std", "kl_target_error")
_PERSIST = 3  # rows in a row for which a limit must be broken
_LOOK = 10  # first rows, which show how this run begins and not what went wrong in it


class Ceiling(Detector):
    """A fixed limit; off for this run, with one notice, when the run's own beginning breaks it."""

    rule = "ceiling"
    __slots__ = ("_broken", "_inside", "_limit", "_notice", "_off", "_rows", "stream")

    def __init__(self, stream: str, limit: float, notice: Callable[[str], None]) -> None:
        self.stream = stream
        self._limit = limit
        self._notice = notice
        self._rows = self._broken = self._inside = 0
        self._off = False

    def update(self, step: int, value: float) -> Detection | None:
        if self._off:
            return None
        self._rows += 1
        bad = value < self._limit if self.stream == "entropy" else abs(value) > self._limit
        if self._rows <= _LOOK:
            self._broken += bad
            if self._rows == _LOOK and 2 * self._broken >= _LOOK:
                self._off = True
                self._notice(
                    f"ceiling {self.stream} {figure(self._limit)}: broken in {self._broken} of the first {_LOOK} rows "
                    "already; such a limit means nothing on this run's scale, so it is off; set another, or null"
                )
            return None
        self._inside = self._inside + 1 if bad else 0
        if self._inside < _PERSIST:
            return None
        side = "below" if self.stream == "entropy" else "beyond"
        return Detection(
            Level.CRITICAL, f"{figure(value)}, {side} the ceiling {figure(self._limit)} for {self._inside} rows"
        )
