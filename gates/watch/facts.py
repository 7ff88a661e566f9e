"""Hard facts: what is true or not, whatever the noise."""

from __future__ import annotations

import math
from collections import deque

from gates.watch.policy import FactRules
from gates.watch.warning import Finding, Level
from gates.wording import figure


class NonFinite:
    """A NaN or an infinity in a stream that has no business holding one."""

    rule = "nonfinite"
    __slots__ = ("_level",)

    def __init__(self, level: Level) -> None:
        self._level = level

    def update(self, step: int, value: float) -> Finding | None:
        return None if math.isfinite(value) else Finding(self._level, f"is {value}")

    def finish(self, completed: bool) -> Finding | None:
        return None


class NanGradients:
    """Gradients that are no numbers, row after row.

    fp16's loss scaling begins too high and finds its scale by a few overflows, and tries a higher one now and then:
    the first few are no news, single ones later are worth a look, several in a row mean that nothing is learned.
    `count`: the stream counts non-finite values instead of holding the norm.
    """

    rule = "nan_gradients"
    __slots__ = ("_all", "_count", "_inside", "_row", "_rules", "_start")

    def __init__(self, rules: FactRules, burn_in: int, *, count: bool) -> None:
        self._rules = rules
        self._start = burn_in
        self._count = count
        self._row = self._all = self._inside = 0

    def update(self, step: int, value: float) -> Finding | None:
        self._row += 1
        bad = value > 0 if self._count and not math.isnan(value) else not math.isfinite(value)
        if not bad:
            self._inside = 0
            return None
        self._inside += 1
        self._all += 1
        what = f"not finite in {self._inside} rows in a row" if self._inside > 1 else "not finite"
        if self._inside >= self._rules.nan_gradient_rows:
            return Finding(Level.STOP, what)
        if self._row <= self._start and self._all <= self._rules.benign_nan_gradients:
            return None
        return Finding(Level.WARN, what)

    def finish(self, completed: bool) -> Finding | None:
        return None


class ZeroLoss:
    """A loss of exactly 0.0, from the start or all of a sudden.

    Nothing to learn from (all labels masked), or a NaN that a trainer wrote down as 0.0. A loss that is learned away
    comes down to its last digit first: it is below `zero_loss_from` before it is zero.
    """

    rule = "zero_loss"
    __slots__ = ("_recent", "_rules", "_zeros")

    def __init__(self, rules: FactRules) -> None:
        self._rules = rules
        self._zeros = 0
        self._recent: deque[float] = deque(maxlen=5)

    def update(self, step: int, value: float) -> Finding | None:
        if value != 0.0:
            self._zeros = 0
            self._recent.append(value)
            return None
        self._zeros += 1
        return self._judge(self._rules.zero_loss_rows)

    def finish(self, completed: bool) -> Finding | None:
        return self._judge(min(2, self._rules.zero_loss_rows))

    def _judge(self, rows: int) -> Finding | None:
        if self._zeros < rows:
            return None
        if not self._recent:
            return Finding(Level.STOP, f"exactly 0 in all {self._zeros} rows so far")
        before = sorted(self._recent)[len(self._recent) // 2]
        if before <= self._rules.zero_loss_from:
            return None
        return Finding(Level.STOP, f"exactly 0 in {self._zeros} rows in a row, {figure(before)} before")


class Capped:
    """Nearly every response ends at the length limit, row after row."""

    rule = "length_capped"
    __slots__ = ("_recent", "_rules")

    def __init__(self, rules: FactRules) -> None:
        self._rules = rules
        self._recent: deque[float] = deque(maxlen=rules.capped_rows)

    def update(self, step: int, value: float) -> Finding | None:
        recent = self._recent
        recent.append(value)
        # Most rows are far from it: sorting can wait until one is not.
        if value < self._rules.capped_share or len(recent) < self._rules.capped_rows:
            return None
        usual = sorted(recent)[len(recent) // 2]
        if usual < self._rules.capped_share:
            return None
        return Finding(Level.WARN, f"{usual:.0%} of the responses cut off (median of {len(recent)} rows)")

    def finish(self, completed: bool) -> Finding | None:
        return None
