"""Gradients many times as large as usual, several times in a row."""

from __future__ import annotations

from collections import deque

from gates.model.wording import figure
from gates.watch.policy import PatternRules
from gates.watch.warning import Detector, Finding, Level

_MEMORY = 21  # rows whose median is what is normal
_LEAST = 8  # rows needed to know what is normal
SPIKE_ROWS = 5  # the last rows, several of which must be high


class GradSpike(Detector):
    """A multiple of what is normal, in several of the last five rows; a single spike is no news.

    Normal is the median of the rows before those, up to twenty-one. Never more than a WARN: gradients are clipped, and
    the loss shows whether they did harm.
    """

    rule = "grad_spike"
    __slots__ = ("_high", "_normal", "_past", "_persist", "_recent", "_stale")

    def __init__(self, multiple: float, patterns: PatternRules) -> None:
        self._high = multiple
        self._persist = patterns.persist
        self._past: deque[float] = deque(maxlen=_MEMORY)
        self._recent: deque[float] = deque(maxlen=SPIKE_ROWS)
        self._normal = 0.0
        self._stale = 0

    def update(self, step: int, value: float) -> Finding | None:
        recent, past = self._recent, self._past
        if len(recent) == SPIKE_ROWS and recent[0] > 0:  # a batch without any gradient is not what is usual
            past.append(recent[0])
        recent.append(value)
        if len(past) < _LEAST:
            return None
        self._stale -= 1
        if self._stale < 0:
            # What is usual changes slowly; sorting in every row would cost more than all the rest.
            self._normal = sorted(past)[len(past) // 2]
            self._stale = SPIKE_ROWS
        limit = self._high * self._normal
        if value <= limit or sum(one > limit for one in recent) < self._persist:
            return None
        seen = f"{figure(value)}, {figure(value / self._normal)} times the usual {figure(self._normal)}"
        return Finding(Level.WARN, seen)
