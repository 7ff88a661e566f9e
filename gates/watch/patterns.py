"""The named early signs of a run that goes wrong, each made to last before it speaks."""

from __future__ import annotations

from collections import deque

from gates.watch.policy import PatternRules
from gates.watch.warning import Finding, Level
from gates.wording import figure

_MEMORY = 21  # rows whose median is what is normal
_LEAST = 8  # rows before there is a normal
SPIKE_ROWS = 5  # rows among which a sign must last
_ENDS = 3  # rows at either end whose medians are compared: a policy can collapse within ten


class Spike:
    """A multiple of what is normal, in several of the last five rows; a single spike is no news.

    Normal is the median of the rows before those, up to twenty-one. Ten times the multiple, lasting, is CRITICAL.
    """

    __slots__ = ("_floor", "_high", "_normal", "_past", "_persist", "_recent", "_stale", "rule")

    def __init__(self, rule: str, multiple: float, patterns: PatternRules, floor: float = 0.0) -> None:
        self.rule = rule
        self._high = multiple
        self._persist = patterns.persist
        self._floor = floor
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
            self._normal = max(sorted(past)[len(past) // 2], self._floor)
            self._stale = SPIKE_ROWS
        normal = self._normal
        limit = self._high * normal
        if value <= limit or sum(one > limit for one in recent) < self._persist:
            return None
        worst = sum(one > 10 * limit for one in recent) >= self._persist
        seen = f"{figure(value)}, {figure(value / normal)} times the usual {figure(normal)}"
        return Finding(Level.CRITICAL if worst else Level.WARN, seen)

    def finish(self, completed: bool) -> Finding | None:
        return None


class Drop:
    """A level that has lost a share of itself within a number of rows; nearly all of its first level is CRITICAL."""

    rule = "entropy_drop"
    __slots__ = ("_ago", "_rows", "_share", "_start")

    def __init__(self, patterns: PatternRules) -> None:
        self._share = patterns.entropy_drop
        self._rows = patterns.entropy_rows
        self._ago: deque[float] = deque(maxlen=self._rows)
        self._start = 0.0

    def update(self, step: int, value: float) -> Finding | None:
        ago = self._ago
        ago.append(value)
        if len(ago) < 2 * _ENDS:
            return None
        rows = list(ago)
        before, now = sorted(rows[:_ENDS])[_ENDS // 2], sorted(rows[-_ENDS:])[_ENDS // 2]
        self._start = max(self._start, before)
        if now >= (1 - self._share) * before and now >= (1 - self._share) ** 4 * self._start:
            return None
        gone = self._start > 0 and now < (1 - self._share) ** 4 * self._start
        seen = f"fell from {figure(before)} to {figure(now)} within {len(rows)} rows"
        return Finding(Level.CRITICAL if gone else Level.WARN, seen)

    def finish(self, completed: bool) -> Finding | None:
        return None


class Above:
    """Above a fixed limit in several rows in a row; not in the first `skip` rows, where Adam's steps are wild."""

    __slots__ = ("_inside", "_limit", "_persist", "_skip", "rule")

    def __init__(self, rule: str, limit: float, persist: int, skip: int) -> None:
        self.rule = rule
        self._limit = limit
        self._persist = persist
        self._skip = skip
        self._inside = 0

    def update(self, step: int, value: float) -> Finding | None:
        if self._skip:
            self._skip -= 1
            return None
        self._inside = self._inside + 1 if value > self._limit else 0
        if self._inside < self._persist:
            return None
        return Finding(Level.WARN, f"{figure(value)}, above {figure(self._limit)} for {self._inside} rows")

    def finish(self, completed: bool) -> Finding | None:
        return None
