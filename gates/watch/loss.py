"""A loss that should fall and has risen: by how much, against its own noise and against what was learned."""

from __future__ import annotations

import math
from collections import deque

from gates.watch.policy import LossRules, PatternRules, RowRules
from gates.watch.warning import Finding, Level
from gates.wording import figure

_DIFF_TO_SD = 0.886  # of a normal: standard deviation over mean absolute difference of neighbours
_MEDIAN_OF_5 = 0.54  # standard deviation of the median of five values, in theirs
_FOLLOW = 0.1  # share by which the smoothed level follows: the lowest of many noisy medians is luck
_EARLY = 3  # rows that a run has before it can have blown up
_MEMORY = 100  # rows over which noise is averaged
_SETTLED = _MEMORY + 1  # rows from which averages follow at a constant rate
# Rows for which a finding must last before it is said: three high losses among five, which small batches have now and
# then, make three high medians in a row, so only a fourth one tells anything new.
_CONFIRM = 4


class LossRise:
    """Compares the median of the last rows with the best smoothed one so far, and with the beginning.

    CRITICAL: it gave back most of what had been learned and stands well above its best, or stands far above where it
    began; a run that blew up within its first rows never had a best: it is measured by the lowest of its first three,
    and must stay above for longer. A rise within the noise of neighbouring rows, or smaller than `floor`, is none: the
    loss of small batches doubles and halves all the time, and at a level of 1e-4 ratios mean nothing.
    """

    rule = "loss_rise"
    __slots__ = (
        "_before",
        "_best",
        "_calm",
        "_critical",
        "_doubtful",
        "_first",
        "_hold",
        "_limit",
        "_lost",
        "_moves",
        "_never",
        "_noise",
        "_recent",
        "_rows",
        "_rules",
        "_smooth",
        "_window",
    )

    def __init__(self, rules: LossRules, rows: RowRules) -> None:
        self._rules = rules
        self._limit = rules.noise * _MEDIAN_OF_5 * _DIFF_TO_SD
        self._window = rows.window
        self._recent: deque[float] = deque(maxlen=rows.window)
        self._hold = rows.hold
        self._rows = self._moves = self._critical = self._doubtful = self._lost = 0
        self._never = math.inf
        self._calm = math.inf  # the noise when the loss began to stand high: a blow-up is no excuse for itself
        self._before = self._noise = 0.0
        self._first = self._best = self._smooth = 0.0

    def update(self, step: int, value: float) -> Finding | None:
        rows = self._rows = self._rows + 1
        recent = self._recent
        recent.append(value)
        # Mean absolute difference of neighbours; a single jump counts as at most five of them.
        change = value - self._before if value > self._before else self._before - value
        self._before = value
        noise = self._noise
        if self._moves > _MEMORY:
            self._noise = noise + ((change if change < 5 * noise else 5 * noise) - noise) / _MEMORY
        elif rows > 1 and (change or noise):  # equal rows at the beginning (DPO's are all ln 2) say nothing of noise
            moves = self._moves = self._moves + 1
            self._noise = noise + ((change if moves < 10 else min(change, 5 * noise)) - noise) / moves
        if rows < self._window:
            if rows == _EARLY:
                self._never = min(recent) + max(self._rules.critical_rise * abs(min(recent)), self._rules.floor)
            return None
        level = sorted(recent)[self._window // 2]
        if rows == self._window:
            self._first = self._best = self._smooth = level
            return None
        follow = _FOLLOW if rows > _SETTLED else max(_FOLLOW, 1 / (rows - self._window + 1))
        smooth = self._smooth = self._smooth + (level - self._smooth) * follow
        if smooth < self._best:
            self._best = smooth
        if level > self._never:
            self._lost += 1
        elif rows >= self._rules.min_rows:
            self._lost, self._never = 0, math.inf
        if self._lost > self._hold:
            return Finding(Level.CRITICAL, self._seen(level))
        # The same two tests as in _judge, which nearly every row passes.
        rise = level - self._best
        noise = self._noise if self._noise < self._calm else self._calm
        if rise <= self._rules.floor or rise <= self._limit * noise or rows < self._rules.min_rows:
            self._critical = self._doubtful = 0
            self._calm = math.inf
            return None
        return self._confirmed(level)

    def finish(self, completed: bool) -> Finding | None:
        """A run that ends badly has no rows left to confirm it: its last two rows speak."""
        if self._rows < self._window + 1:
            return None
        finding = self._judge(min(list(self._recent)[-2:]))
        return finding if finding is not None and finding.level is Level.CRITICAL else None

    def _confirmed(self, level: float) -> Finding | None:
        finding = self._judge(level)
        if finding is None:
            self._critical = self._doubtful = 0
            self._calm = math.inf
            return None
        self._doubtful += 1
        self._calm = min(self._calm, self._noise)
        self._critical = self._critical + 1 if finding.level is Level.CRITICAL else 0
        if self._critical >= _CONFIRM:
            return finding
        return Finding(Level.WARN, finding.seen) if self._doubtful >= _CONFIRM else None

    def _judge(self, level: float) -> Finding | None:
        rules, best, first = self._rules, self._best, self._first
        rise = level - best
        if rise <= rules.floor or rise <= self._limit * min(self._noise, self._calm):
            return None
        learned, size = max(first - best, 0.0), abs(best)
        if rise > rules.critical_rise * size and rise > rules.critical_lost * learned:
            return Finding(Level.CRITICAL, self._seen(level))
        if level - first > rules.critical_start * abs(first):
            return Finding(Level.CRITICAL, self._seen(level))
        if rise > rules.warn_rise * size and rise > rules.warn_lost * learned:
            return Finding(Level.WARN, self._seen(level))
        return None

    def _seen(self, level: float) -> str:
        start = f"began at {figure(self._first)}, "
        return f"{start}reached {figure(self._best)}, stands at {figure(level)} (median of {self._window} rows)"


class LossRising:
    """Row after row higher, and in sum more than chance would do: noise rises five times in a row now and then."""

    rule = "loss_rising"
    __slots__ = ("_before", "_least", "_noise", "_rise", "_rising", "_rows", "_rules", "_start")

    def __init__(self, rules: LossRules, patterns: PatternRules) -> None:
        self._rules = rules
        self._rising = patterns.loss_rising_rows
        self._least = patterns.loss_rising_change
        self._rows = self._rise = 0
        self._before = self._start = self._noise = 0.0

    def update(self, step: int, value: float) -> Finding | None:
        rows = self._rows = self._rows + 1
        before, self._before = self._before, value
        if value > before:
            self._rise += 1
            if self._rise == 1:
                self._start = before
            change = value - before
        else:
            self._rise = 0
            change = before - value
        noise = self._noise
        if rows == 1:
            self._rise = 0
            return None
        if self._rise < self._rising:
            # Outside of the climb itself: a steady climb would be its own excuse.
            self._noise = noise + (change - noise) / (rows - 1 if rows <= _MEMORY else _MEMORY)
            return None
        rise = value - self._start
        enough = rise > self._rules.noise * noise and rise > max(self._rules.floor, self._least * abs(self._start))
        if self._rows < self._rules.min_rows or not enough:
            return None
        return Finding(Level.WARN, f"rose {self._rise} rows in a row, from {figure(self._start)} to {figure(value)}")

    def finish(self, completed: bool) -> Finding | None:
        return None
