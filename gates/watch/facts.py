"""Hard facts: what is true or not, whatever the noise."""

from __future__ import annotations

import itertools
import math
from collections import deque

from gates.watch.policy import FactRules
from gates.watch.warning import Finding, Level
from gates.wording import figure

# Of a normal: standard deviation over mean absolute difference of neighbours; error of a median over that of a mean.
_DIFF_TO_SD, _MEDIAN = 0.886, 1.253


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


class StaysZero:
    """A stream that has been exactly 0 since the first row; one row that is not ends it for good."""

    rule = "no_learning"
    __slots__ = ("_level", "_over", "_rows", "_seen")

    def __init__(self, rules: FactRules, level: Level) -> None:
        self._rows = rules.frozen_rows
        self._level = level
        self._seen = 0
        self._over = False

    def update(self, step: int, value: float) -> Finding | None:
        if self._over:
            return None
        if value:
            self._over = True
            return None
        self._seen += 1
        return self._judge(self._rows)

    def finish(self, completed: bool) -> Finding | None:
        return None if self._over else self._judge(self._rows // 2)

    def _judge(self, rows: int) -> Finding | None:
        if self._seen < rows:
            return None
        return Finding(self._level, f"exactly 0 in all {self._seen} rows so far")


class Flat:
    """A loss that stays where it was: exactly, from the first row on; or, seen at the end, as good as."""

    rule = "no_learning"
    __slots__ = ("_early", "_high", "_late", "_low", "_rows", "_rules")

    def __init__(self, rules: FactRules) -> None:
        self._rules = rules
        self._early: list[float] = []
        self._late: deque[float] = deque(maxlen=rules.frozen_rows)
        self._low, self._high = math.inf, -math.inf
        self._rows = 0

    def update(self, step: int, value: float) -> Finding | None:
        self._late.append(value)
        self._rows += 1
        if value < self._low:
            self._low = value
        if value > self._high:
            self._high = value
        if len(self._early) < self._rules.frozen_rows:
            self._early.append(value)
        return self._exactly(self._rules.frozen_rows) if self._low == self._high else None

    def finish(self, completed: bool) -> Finding | None:
        rows, rules = self._rows, self._rules
        exactly = self._exactly(rules.frozen_rows // 2) if self._low == self._high else None
        if exactly is not None or not completed or rows < rules.frozen_rows:
            return exactly
        size = min(rules.frozen_rows, rows // 3)
        before = sorted(self._early[:size])[size // 2]
        after = sorted(list(self._late)[-size:])[size // 2]
        what = f"{figure(before)} at the start, {figure(after)} at the end of {rows} rows"
        if before > 0 and self._high - self._low < rules.flat_range * before:
            return Finding(Level.CRITICAL, what)
        if before - after >= rules.no_gain * abs(before):
            return None
        # Nothing gained is said where a gain would have shown: not of a few small batches.
        return Finding(Level.WARN, what) if self._doubt(size) <= rules.no_gain_doubt * abs(before) else None

    def _doubt(self, size: int) -> float:
        """Two standard errors of the difference between the medians of the first and the last `size` rows."""
        changes = [
            abs(after - before)
            for values in (self._early[:size], list(self._late)[-size:])
            for before, after in itertools.pairwise(values)
        ]
        noise = _DIFF_TO_SD * sum(changes) / len(changes)
        return 2 * _MEDIAN * noise * math.sqrt(2 / size)

    def _exactly(self, rows: int) -> Finding | None:
        if self._rows < rows or not self._low:  # exactly 0 has a rule of its own
            return None
        return Finding(Level.STOP, f"exactly {figure(self._low)} in all {self._rows} rows so far")


class NoGainInReward:
    """At the end of a run: a reward that is where it was."""

    rule = "no_learning"
    __slots__ = ("_early", "_late", "_rows")

    def __init__(self, rules: FactRules) -> None:
        self._early: list[float] = []
        self._late: deque[float] = deque(maxlen=rules.frozen_rows)
        self._rows = 0

    def update(self, step: int, value: float) -> Finding | None:
        self._rows += 1
        if len(self._early) < self._late.maxlen:  # type: ignore[operator]
            self._early.append(value)
        self._late.append(value)
        return None

    def finish(self, completed: bool) -> Finding | None:
        if not completed or self._rows < len(self._early) * 2:
            return None
        before, after = sum(self._early) / len(self._early), sum(self._late) / len(self._late)
        if after > before:
            return None
        what = f"{figure(before)} on average at the start, {figure(after)} at the end of {self._rows} rows"
        return Finding(Level.WARN, what)


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
