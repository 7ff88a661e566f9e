"""A loss that has risen instead of falling, or a reward that has fallen instead of rising, measured against the run's
own noise and against what was learned."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

from canary_mlflow.gates.model.wording import figure
from canary_mlflow.gates.watch.learning import DIFF_TO_SD, Progress, fell
from canary_mlflow.gates.watch.policy import GainRules, RowRules, StreamRule
from canary_mlflow.gates.watch.warning import Detection, Detector, Level

_TURN_TO_SD = DIFF_TO_SD / math.sqrt(3)  # the same for second differences of independent values
_OF_ROWS = 1.12  # standard deviation of the better of mean and median of n rows / that of one row, times root n
_LEANS = 4 / 3  # by how much the mean of the rows before varies more because the later ones count more
_MEMORY = 100  # rows over which the turns of a level are averaged
# Rows for which a loss must stand above its beginning: three high losses among five, which small batches have now and
# then, make three high medians in a row, so only a fourth one tells anything new.
_CONFIRM = 4
_FEW_ROWS = 1.5  # standard deviations more than later: the first rows tell little about them
_WANDERS = 3.0  # times as far as independent rows tell may a level wander of which nothing else is known yet
_JUMP = 5.0  # a single jump counts as at most this many times the noise
_EARLY = 3  # rows before which a run cannot have blown up
# Factors and nats by which a loss must be above its beginning; ten times is beyond recovery.
_DOUBLE, _TENFOLD, _RISE = 2.0, 10.0, 0.05
_TINY = 1e-9  # a loss of 0 or below has no logarithm
_LIKELY = 2.0  # standard errors by which a reward must have risen before a flat loss is no matter


class Noise:
    """How much single rows vary: the mean absolute difference of neighbours.

    It is taken over all rows, as the level before them is. Where a success is rare, a shorter memory knows of none, and
    any distance from the level that the last ones left would be a fall.

    `weight`: 2 if each row counts the more the later it is, as a margin's noise grows with it; 1 if all count alike.
    `behind`: rows by which it lags, so that a fall does not excuse itself. `jump`: a single difference counts as at
    most this many times the usual; not where most differences are 0, as those of rewards of small groups are.
    """

    __slots__ = ("_before", "_behind", "_changes", "_jump", "_mean", "_moves", "_weight")

    def __init__(self, weight: int, behind: int = 0, jump: float = math.inf) -> None:
        self._weight = weight
        self._behind = behind
        self._jump = jump
        self._changes: deque[float] = deque()
        self._before: float | None = None
        self._mean = 0.0
        self._moves = 0

    @property
    def sd(self) -> float:
        """As a standard deviation."""
        return DIFF_TO_SD * self._mean

    def update(self, value: float) -> None:
        changes, before, self._before = self._changes, self._before, value
        if before is not None:
            changes.append(abs(value - before))
        if len(changes) <= self._behind:
            return
        change, mean = changes.popleft(), self._mean
        if change or mean:  # equal first rows (DPO's are all ln 2) tell nothing about noise
            moves = self._moves = self._moves + 1
            most, share = self._jump * mean, self._weight / (moves + self._weight - 1)
            counted = most if most < change and moves >= 10 else change
            self._mean = mean + (counted - mean) * share


class GainLost:
    """The last `window` rows are worse than all rows before them; higher values are worse.

    A reward has no natural zero and no unit, and a loss may end far above 0, so only the run's own noise can tell how
    far is far. Of the rows before, each counts the more the later it is: a series that has risen steadily stands a
    third of its gain above them, and must lose that before it can be worse. Small batches earn one of a few values, so
    the level of the last rows is the better of their mean and median, and three bad rows among ten are no fall.
    Successive batches are alike, so the noise is also that of the level itself, against the line through it one and two
    windows ago; before it has turned, that of the `shorter` window tells.
    """

    __slots__ = (
        "_best", "_first", "_least", "_level_sd", "_levels", "_new", "_noise", "_past", "_recent", "_rows", "_rules",
        "_share", "_shorter", "_turns", "_window", "clear",
    )  # fmt: skip

    def __init__(self, rules: GainRules, window: int, noise: Noise, shorter: GainLost | None = None) -> None:
        self._rules = rules
        self._window = window
        self._noise = noise
        self._shorter = shorter
        self._share = _OF_ROWS / math.sqrt(window)
        self._least = window + rules.min_rows
        self._recent: deque[float] = deque(maxlen=window)
        self._levels: deque[float] = deque(maxlen=2 * window + 1)
        self._new: deque[float] = deque()
        self._rows = self._turns = 0
        self._level_sd = self._first = self._best = self._past = 0.0
        self.clear = False  # whether the last finding was of more than one noisy stretch

    @property
    def gained(self) -> bool:
        """Whether the series has ever been better than at the beginning."""
        return self._first - self._best > self._rules.noise * self.error

    @property
    def error(self) -> float:
        """Standard deviation of the level if rows are independent; no other estimate is smaller."""
        return self._share * self._noise.sd

    def update(self, value: float) -> Detection | None:
        # In one piece: in a training this runs once a step, when the processor's cache holds nothing of it any more, so
        # each further function and attribute is read from memory.
        rows = self._rows = self._rows + 1
        recent, window = self._recent, self._window
        before = rows - window
        if before > 0:
            past = self._past = self._past + (recent[0] - self._past) * 2 / (before + 1)
            if past < self._best and before >= window:
                self._best = past
        recent.append(value)
        if before < 0:
            return None
        # The level at which the series stands now.
        level, mean = sorted(recent)[window // 2], sum(recent) / window
        level = mean if mean < level else level
        if not before:
            self._first = self._best = level
        # Nearly every row goes past this.
        elif level > self._past and rows >= self._least:
            finding = self._judge(level)
            if finding is not None:
                return finding
        levels = self._levels
        levels.append(level)
        if len(levels) > 2 * window:
            # By how much the level turns by itself: its distance to the line through the earlier ones.
            new = self._new
            new.append(_TURN_TO_SD * abs(level - 2 * levels[window] + levels[0]))
            if len(new) > window:  # the newest ones may be the beginning of a fall
                turns = self._turns = self._turns + 1
                self._level_sd += (new.popleft() - self._level_sd) / (turns if turns < _MEMORY else _MEMORY)
        return None

    def _judge(self, level: float) -> Detection | None:
        """What it means that the series stands at this level."""
        rules, fall, error = self._rules, level - self._past, self._wandering()
        if not error or fall <= max(rules.floor, rules.lost * (self._first - self._past)):
            return None
        far = (fall / error) ** 2 / (1 + _LEANS * self._window / (self._rows - self._window))
        # The worst of many levels stands apart by luck, the further the more there were.
        far -= 6.0 * math.log(max(self._rows / _MEMORY, 1.0))
        if far <= rules.noise**2:
            return None
        self.clear = self._stands_out(fall)
        lost = self.clear and far > rules.critical_noise**2
        return Detection(Level.CRITICAL if lost else Level.WARN, self._seen(level))

    def _stands_out(self, fall: float) -> bool:
        """Whether it is also beyond the noise of the last rows themselves: small batches have stretches of it."""
        changes = sum(abs(after - before) for before, after in pairwise(self._recent))
        own = self._share * DIFF_TO_SD * changes / (self._window - 1)
        return fall > self._rules.noise * own

    def _wandering(self) -> float:
        """Standard deviation of the level of a series that goes nowhere.

        Rows are not independent, so an estimate from neighbours is too small. Few turns of the level estimate it badly:
        those of neighbouring rows are nearly one, and the first may all be small by luck. So the shorter window tells
        too, as much as three turns. There is none beside the shortest: its first turns count for more, and before them
        a multiple of the estimate from neighbours does.
        """
        turns, shorter = self._turns, self._shorter
        if shorter is None:
            return max(self.error, self._level_sd * (1 + 3 / turns)) if turns else _WANDERS * self.error
        known = shorter._wandering() * self._share / shorter._share
        return max(self.error, self._level_sd + known * 3 / (turns + 3))

    def _seen(self, level: float) -> str:
        return self._course(self._first, f"fell to {figure(self._past)}, is now at", level)

    def _course(self, first: float, between: str, level: float) -> str:
        gained = between if self.gained else "is now at"
        return f"started at {figure(first)}, {gained} {figure(level)} (level of {self._window} rows)"


class RewardLost(GainLost):
    """The same for a series that should rise."""

    __slots__ = ()

    def update(self, value: float) -> Detection | None:
        return super().update(-value)

    def _stands_out(self, fall: float) -> bool:
        return True  # a policy that collapses earns by chance, so that its rewards swing

    def _seen(self, level: float) -> str:
        return self._course(-self._first, f"rose to {figure(-self._past)}, is back at", -level)


class BlowUp:
    """A loss that stands far above its beginning before it had a best level.

    At the double of the level of its first rows for as long as any finding, or, if it blew up in these, of the lowest
    of its first three rows, and above all of them, for longer. At ten times the lowest and twice the highest it is
    beyond recovery as soon as `hold_least` rows say so. A loss this far from where it is going varies as far as it
    is high, so the rise and the noise of neighbours are measured as factors.
    """

    __slots__ = (
        "_above", "_far_above", "_first", "_highest", "_hold", "_least", "_lowest", "_noise", "_recent",
        "_rows", "_rules",
    )  # fmt: skip

    def __init__(self, rules: GainRules, rows: RowRules) -> None:
        self._rules = rules
        self._hold, self._least = rows.hold, rows.hold_least
        self._recent: deque[float] = deque(maxlen=rows.window)
        self._rows = self._above = self._far_above = 0
        self._first = 0.0
        self._lowest, self._highest = math.inf, -math.inf
        self._noise = Noise(1, jump=_JUMP)

    @property
    def over(self) -> bool:
        """Whether the beginning is over: from here on the loss has a best level."""
        return self._rows >= self._rules.window + self._rules.min_rows and not self._above and not self._far_above

    def update(self, value: float) -> Detection | None:
        rows = self._rows = self._rows + 1
        recent = self._recent
        recent.append(value)
        window = len(recent)
        level = min(sorted(recent)[window // 2], sum(recent) / window)
        self._noise.update(math.log(max(value, _TINY)))
        if rows <= _EARLY:
            self._lowest, self._highest = min(self._lowest, value), max(self._highest, value)
        if rows <= window:
            self._first = level
            return None
        error = self._noise.sd
        far = _factors(level, self._first, _DOUBLE, error * _OF_ROWS / math.sqrt(window))
        # One low row among the first ones is luck.
        further = _factors(level, self._lowest, _DOUBLE, error) if level > self._highest else 0.0
        least = self._rules.noise + _FEW_ROWS
        now = min(list(recent)[-self._least :])
        if now > _DOUBLE * self._highest and _factors(now, self._lowest, _TENFOLD, error) > least:
            return Detection(
                Level.STOP, f"at {figure(self._lowest)} in its first rows, is now at {figure(now)} or more"
            )
        self._above = self._above + 1 if far > least else 0
        self._far_above = self._far_above + 1 if further > least else 0
        if self._above < _CONFIRM and self._far_above <= self._hold:
            return None
        lost = max(far, further) > self._rules.critical_noise + _FEW_ROWS
        seen = f"at {figure(self._lowest)} in its first rows, is now at {figure(level)}"
        return Detection(Level.CRITICAL if lost else Level.WARN, seen)


def _factors(level: float, start: float, least: float, error: float) -> float:
    """By how many errors of its logarithm a factor above the start stands out; 0 if it is no larger than the least."""
    if start <= 0 or level <= max(least * start, start + _RISE):
        return 0.0
    return math.log(level / start) / (error or _TINY)


class LossRise(Detector):
    """`GainLost` over few rows and twice as many, and `BlowUp` at the beginning."""

    rule = "loss_rise"
    __slots__ = ("_begun", "_blow_up", "_noise", "_parts", "_progress")

    def __init__(self, rules: GainRules, rows: RowRules, progress: Progress) -> None:
        self._progress = progress
        self._noise = Noise(2, rows.window)
        self._parts = _parts(GainLost, rules, self._noise)
        self._blow_up = BlowUp(rules, rows)
        self._begun = False  # whether the beginning is over

    def update(self, step: int, value: float) -> Detection | None:
        self._noise.update(value)
        self._progress.losses.append(value)
        found = _worst(self._parts, value)
        if found is not None and self._progress.falls and any(part.clear for part in self._parts):
            found = Detection(Level.CRITICAL, f"{found.seen}, and the margin fell")
        if self._begun:
            return found
        if self._blow_up.over:
            self._begun = True
            return found
        return _worse(self._blow_up.update(value), found)


class EvalRise(Detector):
    """A loss on held-out data that climbs away from its best, while that of the training has fallen: it overfits."""

    rule = "overfitting"
    __slots__ = ("_above", "_best", "_progress", "_rule", "_then")

    def __init__(self, rule: StreamRule, progress: Progress) -> None:
        self._rule, self._progress = rule, progress
        self._best = self._then = math.inf
        self._above = 0

    def update(self, step: int, value: float) -> Detection | None:
        losses = sorted(self._progress.losses)
        trained = losses[len(losses) // 2] if losses else math.inf
        if value < self._best:
            self._best, self._then = value, trained
        best = max(self._best, self._rule.floor)
        self._above = self._above + 1 if value > self._rule.warn_change * best else 0
        if self._above < 2 or trained >= self._then:
            return None
        seen = f"rose from {figure(self._best)} to {figure(value)}, while the training loss fell to {figure(trained)}"
        return Detection(Level.WARN, seen)


class RewardFall(Detector):
    """`RewardLost` over few rows, which see a collapse soon, and twice as many, which see one through more noise."""

    rule = "reward_fall"
    __slots__ = ("_early", "_late", "_noise", "_parts", "_rows", "falls", "gained")

    def __init__(self, stream: str, rules: GainRules, rows: RowRules, progress: Progress) -> None:
        self._noise = Noise(2, rows.window)
        self._parts = _parts(RewardLost, rules, self._noise)
        self._early: list[float] = []
        self._late: deque[float] = deque(maxlen=2 * rules.window)
        self._rows = 0
        self.falls = self.gained = False
        progress.rewards[stream] = self

    def update(self, step: int, value: float) -> Detection | None:
        self._noise.update(value)
        found = _worst(self._parts, value)
        self._rows += 1
        if len(self._early) < (self._late.maxlen or 0):
            self._early.append(value)
        self._late.append(value)
        self.falls = found is not None
        self.gained = self.gained or any(part.gained for part in self._parts)
        return found

    @property
    def ahead(self) -> bool:
        """Whether the reward is better now than at the beginning, more likely than not."""
        size = min(len(self._early), self._rows // 2)
        return size > 1 and fell(list(self._late)[-size:], self._early[:size], _LIKELY)


def _parts(kind: type[GainLost], rules: GainRules, noise: Noise) -> tuple[GainLost, GainLost]:
    """One for `window` rows and one for twice as many, which leans on the first."""
    short = kind(rules, rules.window, noise)
    return short, kind(rules, 2 * rules.window, noise, short)


def _worst(parts: tuple[GainLost, GainLost], value: float) -> Detection | None:
    """The worst that the parts find at this row."""
    short, long = parts
    found, other = short.update(value), long.update(value)
    return found if other is None else _worse(found, other)


def _worse(one: Detection | None, other: Detection | None) -> Detection | None:
    """The worse of two findings; the first if they are alike."""
    if other is None or (one is not None and one.level >= other.level):
        return one
    return other
