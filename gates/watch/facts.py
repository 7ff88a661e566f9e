"""Hard facts, which are true or not, whatever the noise."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping

from canary_mlflow.gates.model.wording import figure
from canary_mlflow.gates.watch.learning import Progress
from canary_mlflow.gates.watch.policy import FactRules
from canary_mlflow.gates.watch.warning import Detection, Detector, Level

_FIRST_LOSSES = (0.5, math.log(2), 1.0)  # KTO's; DPO's and what is like it; a hinge's
_OFF, _EXACTLY, _MOST_TIMES, _NO_REWARD = 1.1, 1e-3, 64, 0.02


class NonFinite(Detector):
    """A NaN or an infinity in a stream that has no business holding one.

    `start`: rows in which it is only worth a look, as long as the stream has not held a number yet.
    """

    rule = "nonfinite"
    __slots__ = ("_begun", "_level", "_rows", "_start")

    def __init__(self, level: Level, start: int) -> None:
        self._level = level
        self._start = start
        self._rows = 0
        self._begun = False

    def update(self, step: int, value: float) -> Detection | None:
        if math.isfinite(value):
            self._begun = True
            return None
        self._rows += 1
        early = not self._begun and self._rows <= self._start
        return Detection(Level.WARN if early else self._level, f"is {value}")

    def rests(self) -> bool:
        return self._begun

    def finish(self, completed: bool) -> Detection | None:
        return Detection(self._level, f"no number in {self._rows} rows") if self._rows and not self._begun else None


class ZeroLoss(Detector):
    """A loss of exactly 0.0, from the start or all of a sudden.

    Either there is nothing to learn from (all labels masked), or a trainer logged a NaN as 0.0. A loss that is learned
    away first comes down to its last digit: it is below `zero_loss_from` before it is zero; or its margin (`progress`)
    has risen, or gradients still flow, or it has been 0 before and came back, as no NaN does.
    """

    rule = "zero_loss"
    __slots__ = ("_back", "_progress", "_recent", "_rules", "_zeros")

    def __init__(self, rules: FactRules, progress: Progress) -> None:
        self._rules = rules
        self._progress = progress
        self._zeros = 0
        self._back = False
        self._recent: deque[float] = deque(maxlen=5)

    def update(self, step: int, value: float) -> Detection | None:
        if value != 0.0:
            self._back = self._back or (self._zeros > 0 and len(self._recent) > 0)
            self._zeros = 0
            self._recent.append(value)
            return None
        if not self._zeros:
            self._progress.gradients = False  # of the rows from here on
        self._zeros += 1
        return self._judge(self._rules.zero_loss_rows)

    def finish(self, completed: bool) -> Detection | None:
        return self._judge(min(2, self._rules.zero_loss_rows))

    def _judge(self, rows: int) -> Detection | None:
        if self._zeros < rows:
            return None
        if not self._recent:
            return Detection(Level.STOP, f"exactly 0 in all {self._zeros} rows so far")
        before = sorted(self._recent)[len(self._recent) // 2]
        progress = self._progress
        if before <= self._rules.zero_loss_from or self._back or progress.gradients or progress.ahead:
            return None
        return Detection(Level.STOP, f"exactly 0 in {self._zeros} rows in a row, {figure(before)} before")


class FirstLoss(Detector):
    """The loss of the first row, where all rewards are 0: the policy is still its reference, and the loss is known,
    whatever the data. `start`: the first values of the rewards.

    Above those of DPO, KTO and a hinge it may be IPO's, 1 / (4 beta²), unless it is DPO's several times over.
    """

    rule = "first_value"
    __slots__ = ("_first", "_start")

    def __init__(self, start: Mapping[str, float]) -> None:
        self._start = start
        self._first: float | None = None

    def update(self, step: int, value: float) -> Detection | None:
        if self._first is None:
            self._first = value
            return None
        return self._judge() if self._first and self._start else None  # the first rewards may stand behind the loss

    def finish(self, completed: bool) -> Detection | None:
        return self._judge()

    def _judge(self) -> Detection | None:
        first, self._first = self._first, 0.0
        if not first:
            return None
        chosen, margin = (abs(self._start.get(name, math.inf)) for name in ("chosen_reward", "reward_margin"))
        if max(chosen, margin) > _NO_REWARD or any(known / _OFF < first < known * _OFF for known in _FIRST_LOSSES):
            return None
        times = first / math.log(2)
        if first > _OFF and abs(times / min(max(round(times), 2), _MOST_TIMES) - 1) > _EXACTLY + margin:
            return None
        return Detection(Level.WARN, f"{figure(first)}, {figure(times)} times the ln 2 of rewards that are still 0")


class _Length(Detector):
    """The length of the answers over `capped_rows`, where no reward stands above its beginning: to learn to answer
    briefly, or at length, is no failure."""

    __slots__ = ("_progress", "_recent", "_share")

    def __init__(self, rules: FactRules, progress: Progress) -> None:
        self._share = rules.shrunk_share
        self._progress = progress
        self._recent: deque[float] = deque(maxlen=rules.capped_rows)

    def update(self, step: int, value: float) -> Detection | None:
        recent = self._recent
        recent.append(value)
        if len(recent) < (recent.maxlen or 0):
            return None
        level = sum(recent) / len(recent)
        before = self._left(level)
        if before is None or self._progress.ahead:
            return None
        seen = f"{figure(level)} tokens long (last {len(recent)} rows), {figure(before)} before"
        return Detection(self._progress.harm if self.rule == "length_runaway" else Level.CRITICAL, seen)

    @abstractmethod
    def _left(self, level: float) -> float | None:
        """The length from which the answers have come too far to be at this one; None if they have not."""


class Shrunk(_Length):
    """The answers have shrunk to next to nothing: a policy that pays for each token by its distance from the reference
    ends its answers at once."""

    rule = "length_collapse"
    __slots__ = ("_longest",)

    def __init__(self, rules: FactRules, progress: Progress) -> None:
        super().__init__(rules, progress)
        self._longest = 0.0

    def _left(self, level: float) -> float | None:
        if level > self._longest:
            self._longest = level
        return self._longest if level <= self._share * self._longest else None


class Grown(_Length):
    """The answers run on: they are many times as long as at the beginning. The length limit may be far away."""

    rule = "length_runaway"
    __slots__ = ("_first",)

    def __init__(self, rules: FactRules, progress: Progress) -> None:
        super().__init__(rules, progress)
        self._first: float | None = None

    def _left(self, level: float) -> float | None:
        if self._first is None:
            self._first = max(level, 1.0)
        return self._first if self._first <= self._share * level else None


class Capped(Detector):
    """Nearly every response is cut off at the length limit, while fewer than half were before; or has been from the
    first row on, and no reward has risen after `stuck` rows, or by the end.

    A fresh policy may begin like that, and a task that is too long for its limit stays like that while it is learned.
    """

    rule = "length_runaway"
    __slots__ = ("_least", "_progress", "_recent", "_rows", "_rules", "_stuck")

    def __init__(self, rules: FactRules, stuck: int, progress: Progress) -> None:
        self._rules = rules
        self._stuck = stuck
        self._progress = progress
        self._recent: deque[float] = deque(maxlen=rules.capped_rows)
        self._least = 1.0
        self._rows = 0

    def update(self, step: int, value: float) -> Detection | None:
        self._rows += 1
        recent, rules = self._recent, self._rules
        recent.append(value)
        if len(recent) < rules.capped_rows:
            return None
        share = sum(recent) / len(recent)
        if share < self._least:
            self._least = share
        if share >= rules.capped_share and self._least <= rules.capped_from:
            seen = f"{share:.0%} of the responses cut off (last {len(recent)} rows), {self._least:.0%} before"
            return Detection(self._progress.harm, seen)
        return self._always() if self._rows == self._stuck else None

    def finish(self, completed: bool) -> Detection | None:
        return self._always() if completed and self._rows >= self._rules.frozen_rows else None

    def _always(self) -> Detection | None:
        if self._least < self._rules.capped_share or self._progress.ahead:
            return None
        seen = f"at least {self._least:.0%} of the responses cut off in all {self._rows} rows so far"
        seen += "; no reward has risen since the first"
        return Detection(Level.WARN, seen)
