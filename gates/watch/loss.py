"""A loss that has risen instead of falling, or a reward that has fallen instead of rising, measured against the run's
own noise and against what was learned."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

from gates.model.wording import figure
from gates.watch.policy import GainRules, LossRules, RowRules
from gates.watch.together import Outcome
from gates.watch.warning import Detector, Finding, Level

_DIFF_TO_SD = 0.886  # of a normal: standard deviation over mean absolute difference of neighbours
_MEDIAN_OF_5 = 0.54  # standard deviation of the median of five values / that of one value
_TURN_TO_SD = 0.512  # of independent values: standard deviation over mean absolute second difference
_OF_ROWS = 1.12  # standard deviation of the better of mean and median of n rows / that of one row, times root n
_NOTHING_GAINED = 1.25  # times as far must a reward fall that has gained nothing yet
_FOLLOW = 0.1  # share by which the smoothed level follows: the lowest of many noisy medians is luck
_EARLY = 3  # rows before which a run cannot have blown up
_MEMORY = 100  # rows over which noise is averaged
_TURNS = 20  # number of turns beyond which a level's own turns show how far it wanders
_SETTLED = _MEMORY + 1  # rows from which on averages follow at a constant rate
# Rows for which a finding must last before it is reported: three high losses among five, which small batches have now
# and then, make three high medians in a row, so only a fourth one tells anything new.
_CONFIRM = 4


class BlowUp:
    """Compares the median of the last rows with the best smoothed one so far, and with the beginning.

    CRITICAL: the loss gave back most of what had been learned and stands well above its best, or it stands far above
    where it began. A run that blew up within its first rows never had a best: it is measured by the lowest of its first
    three rows, and must stay above it for longer. A rise within the noise of neighbouring rows, or smaller than
    `floor`, does not count: the loss of small batches doubles and halves all the time, and at 1e-4 ratios mean nothing.
    """

    _jump = 5.0  # a single jump counts as at most this many times the noise
    __slots__ = (
        "_before",
        "_best",
        "_calm",
        "_critical",
        "_doubtful",
        "_first",
        "_floor",
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

    def __init__(self, rules: LossRules | GainRules, rows: RowRules) -> None:
        self._rules: LossRules | GainRules = rules
        self._floor = rules.floor
        self._limit = rules.noise * _MEDIAN_OF_5 * _DIFF_TO_SD
        self._window = rows.window
        self._recent: deque[float] = deque(maxlen=rows.window)
        self._hold = rows.hold
        self._rows = self._moves = self._critical = self._doubtful = self._lost = 0
        self._never = math.inf
        self._calm = math.inf  # the noise when the loss began to stand high: a blow-up must not excuse itself
        self._before = self._noise = 0.0
        self._first = self._best = self._smooth = 0.0

    def update(self, step: int, value: float) -> Finding | None:
        rows = self._rows = self._rows + 1
        recent = self._recent
        recent.append(value)
        # Mean absolute difference of neighbours.
        change = value - self._before if value > self._before else self._before - value
        self._before = value
        noise = self._noise
        if self._moves > _MEMORY:
            self._noise = noise + ((change if change < self._jump * noise else self._jump * noise) - noise) / _MEMORY
        elif rows > 1 and (change or noise):  # equal first rows (DPO's are all ln 2) tell nothing about noise
            moves = self._moves = self._moves + 1
            self._noise = noise + ((change if moves < 10 else min(change, self._jump * noise)) - noise) / moves
        if rows < self._window:
            if rows == _EARLY:
                self._never = self._hopeless(min(recent))
            return None
        level = self._level()
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
        # The same two tests as in _judge; nearly every row passes them.
        rise = level - self._best
        noise = self._noise if self._noise < self._calm else self._calm
        if rise <= self._floor or rise <= self._limit * noise or rows < self._rules.min_rows:
            self._critical = self._doubtful = 0
            self._calm = math.inf
            return None
        return self._confirmed(level)

    def finish(self, completed: bool) -> Finding | None:
        """The finding at the end: a run that ends badly has no rows left to confirm it, so its last two rows decide, if
        they stand out of the noise of single rows."""
        lower = min(list(self._recent)[-2:], default=0.0)
        alone = self._limit / _MEDIAN_OF_5 * min(self._noise, self._calm)
        if self._rows < self._window + 1 or lower - self._best <= alone:
            return None
        finding = self._judge(lower)
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

    def _level(self) -> float:
        """The level at which the loss stands now."""
        return sorted(self._recent)[self._window // 2]

    def _hopeless(self, lowest: float) -> float:
        """The level above which a run never learned anything, from the lowest of its first rows."""
        assert isinstance(self._rules, LossRules)
        return lowest + max(self._rules.critical_rise * abs(lowest), self._floor)

    def _judge(self, level: float) -> Finding | None:
        rules, best, first = self._rules, self._best, self._first
        assert isinstance(rules, LossRules)
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
        start = f"started at {figure(self._first)}, "
        return f"{start}fell to {figure(self._best)}, is now at {figure(level)} (median of {self._window} rows)"


class GainLost(BlowUp):
    """What a series had gained is lost again, in the level of the last `window` rows; higher values are worse.

    A reward has no natural zero and no unit, and a loss may end far above 0, so only its own noise and the run's gain
    can tell how far is far. Small batches earn one of a few values, so the level is the better of the last rows' mean
    and median: two bad rows among five are no fall, nor are three if every second row is bad. Successive batches are
    alike, so the noise is also that of the level itself, against the line through it one and two windows ago.
    """

    _jump = math.inf
    __slots__ = ("_levels", "_new", "_share", "_shorter", "_turns", "_wobble")

    def __init__(self, rules: GainRules, rows: RowRules, window: int, shorter: GainLost | None = None) -> None:
        self._shorter = shorter
        self._share = _OF_ROWS / math.sqrt(window)
        super().__init__(rules, replace(rows, window=window))
        self._limit = rules.noise * self._share * _DIFF_TO_SD
        self._levels: deque[float] = deque(maxlen=2 * window + 1)
        self._new: deque[float] = deque()
        self._wobble = 0.0
        self._turns = 0

    @property
    def gained(self) -> bool:
        """Whether the series has ever been better than at the beginning."""
        return self._rows > self._window and self._first - self._best > self._limit * self._noise

    @property
    def ahead(self) -> bool:
        """Whether it is better now than at the beginning."""
        return self._rows > self._window and self._first - self._level() > self._limit * self._noise

    def update(self, step: int, value: float) -> Finding | None:
        finding = super().update(step, value)
        if not self._doubtful and self._rows >= self._window:  # a fall must not excuse itself
            self._settle()
        return finding

    def _settle(self) -> None:
        levels = self._levels
        levels.append(self._level())
        if len(levels) == 2 * self._window + 1:
            self._new.append(_TURN_TO_SD * abs(levels[-1] - 2 * levels[self._window] + levels[0]))
            if len(self._new) > self._window:  # the newest ones may be the beginning of a fall
                self._turns += 1
                self._wobble += (self._new.popleft() - self._wobble) / min(self._turns, _MEMORY)

    def _level(self) -> float:
        return min(super()._level(), sum(self._recent) / self._window)

    def _hopeless(self, lowest: float) -> float:
        return math.inf  # it has no scale yet

    def _judge(self, level: float) -> Finding | None:
        rules = self._rules
        assert isinstance(rules, GainRules)
        error = self._error()
        if error is None:
            return None
        fall, gained = level - self._best, max(self._first - self._best, 0.0)
        far = fall / (error or math.inf)
        if not self.gained:  # its best level is its first one, or luck
            far /= _NOTHING_GAINED
        if fall <= self._floor or far <= rules.noise:
            return None
        if far > rules.critical_noise and fall > rules.critical_lost * gained:
            return Finding(Level.CRITICAL, self._seen(level))
        return Finding(Level.WARN, self._seen(level)) if fall > rules.warn_lost * gained else None

    def _error(self) -> float | None:
        """Standard deviation of the level of a series that goes nowhere; None if it is too early to tell.

        Rows are not independent, so an estimate from neighbours is too small. While the level has turned only a few
        times, the estimate for independent rows is scaled by the same factor as the shorter window's.
        """
        if self._turns > _TURNS or (self._turns and self._shorter is None):
            independent = self._share * _DIFF_TO_SD * min(self._noise, self._calm)
            return max(independent, self._wobble * (1 + 3 / self._turns))  # few turns estimate it badly
        error = self._shorter._error() if self._shorter is not None else None
        return error * self._share / self._shorter._share if error is not None and self._shorter is not None else None


class RewardLost(GainLost):
    """The same for a series that should rise."""

    __slots__ = ()

    def update(self, step: int, value: float) -> Finding | None:
        return super().update(step, -value)

    def _seen(self, level: float) -> str:
        start = f"started at {figure(-self._first)}, "
        return f"{start}rose to {figure(-self._best)}, is back at {figure(-level)} (level of {self._window} rows)"


class LossRise(Detector):
    """`BlowUp`, and `GainLost` over few rows and over many: a loss that ends far above 0 takes back all that was
    learned in a rise by a tenth."""

    rule = "loss_rise"
    __slots__ = ("_blow_up", "_parts")

    def __init__(self, rules: LossRules, gain: GainRules, rows: RowRules) -> None:
        self._blow_up = BlowUp(rules, rows)
        self._parts = (GainLost(gain, rows, rows.window), GainLost(gain, rows, gain.long_window))

    def update(self, step: int, value: float) -> Finding | None:
        worst = self._blow_up.update(step, value)
        for part in self._parts:
            found = part.update(step, value)
            if found is not None and (worst is None or found.level > worst.level):
                worst = found
        return worst

    def finish(self, completed: bool) -> Finding | None:
        return self._blow_up.finish(completed)


class RewardFall(Detector):
    """`RewardLost` over few rows, which sees a collapse at once, and over many, which sees one through more noise.

    `sampled`: the reward is earned by the policy's own answers, so its rows are alike from the start, and the long
    window may begin with the short one's noise. Margins on given pairs are as noisy as they are large: their noise at
    the start is 0.
    """

    rule = "reward_fall"
    __slots__ = ("_long", "_outcome", "_short", "_stream")

    def __init__(self, stream: str, rules: GainRules, rows: RowRules, outcome: Outcome, *, sampled: bool) -> None:
        self._stream = stream
        self._outcome = outcome
        self._short = RewardLost(rules, rows, rows.window)
        self._long = RewardLost(rules, rows, rules.long_window, self._short if sampled else None)

    def update(self, step: int, value: float) -> Finding | None:
        short, long = self._short.update(step, value), self._long.update(step, value)
        found = long if short is None or (long is not None and long.level > short.level) else short
        ahead = self._short.ahead or self._long.ahead
        self._outcome.note(self._stream, found is not None, self._short.gained or self._long.gained, ahead)
        return found
