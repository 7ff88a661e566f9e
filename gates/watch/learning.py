"""Hard facts about a training that learns nothing: numbers that do not move, a reward that gains nothing; and what
rules share that look at two series.
"""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from canary_mlflow.gates.model.wording import figure
from canary_mlflow.gates.watch.policy import BEGINNING, FactRules, PatternRules
from canary_mlflow.gates.watch.warning import Detection, Detector, Level

# Of a normal: standard deviation over mean absolute deviation, which is also the error of a median over that of a mean,
# and over the mean absolute difference of neighbours.
MEAN_TO_SD, DIFF_TO_SD = math.sqrt(math.pi / 2), math.sqrt(math.pi) / 2
_LESS_LIKELY = 1.5  # times the first log-probability, if more is lost than the margin has gained and nothing learned


class RewardTrend(Protocol):
    """How a reward stands: whether it is falling, has ever been better than at the beginning, and is so now."""

    falls: bool
    gained: bool

    @property
    def ahead(self) -> bool: ...


class Progress:
    """The rewards of a run, by stream, for the rules that ask how they stand.

    Beside a score, the reward is the score less what the policy's distance costs: it rises with every token that is not
    written. So the score alone counts where there is one.
    """

    __slots__ = ("gradients", "losses", "rewards")

    def __init__(self) -> None:
        self.rewards: dict[str, RewardTrend] = {}
        self.losses: deque[float] = deque(maxlen=5)  # of the training, the last ones
        self.gradients: bool | None = None  # whether any reached the policy; None: none was logged

    @property
    def falls(self) -> bool:
        """Whether a reward is falling."""
        return any(reward.falls for reward in self._counted())

    @property
    def gained(self) -> bool:
        """Whether a reward has been better than at the beginning."""
        return any(reward.gained for reward in self._counted())

    @property
    def ahead(self) -> bool:
        """Whether a reward is better now than at the beginning."""
        return any(reward.ahead for reward in self._counted())

    @property
    def harm(self) -> Level:
        """How bad it is that answers run on: as long as the rewards hold, it is at most worth a look."""
        return Level.CRITICAL if self.falls or not self.rewards else Level.WARN

    def _counted(self) -> Iterable[RewardTrend]:
        score = self.rewards.get("score_mean")
        return self.rewards.values() if score is None else (score,)


class NoSpread(Detector):
    """Groups whose answers all earn the same, row after row: no advantage, no gradient.

    Once a reward has gained, this is success, as long as the reward stays up.
    """

    rule = "no_spread"
    __slots__ = ("_inside", "_progress", "_share", "_wanted")

    def __init__(self, share: float, patterns: PatternRules, progress: Progress) -> None:
        self._share = share
        self._wanted = patterns.no_spread_rows
        self._progress = progress
        self._inside = 0

    def update(self, step: int, value: float) -> Detection | None:
        self._inside = self._inside + 1 if value >= self._share else 0
        progress = self._progress
        dead = self._inside >= self._wanted
        seen = f"{value:.0%} of the groups without any spread of rewards, for {self._inside} rows"
        if dead and progress.falls:
            return Detection(Level.CRITICAL, f"{seen}, and the reward fell")
        if self._inside < 2 * self._wanted or progress.gained:
            return None
        return Detection(Level.WARN, f"{seen}, and no reward has risen since the first rows")


class Displacement:
    """DPO's preferred answers become far less likely, together with the rejected ones.

    A little less likely they become in most healthy runs, so their log-probability is compared with that at the
    beginning. `chosen_reward` is beta times its gain over the reference. Each series feeds this detector through its
    own `part`; the chosen reward's part reports what was found.
    """

    __slots__ = ("_first", "_recent", "_rules", "_window", "start")

    def __init__(self, patterns: PatternRules, window: int) -> None:
        self._rules = patterns
        self._window = window
        self._recent: dict[str, deque[float]] = {}
        self._first: dict[str, list[float]] = {}
        self.start: dict[str, float] = {}  # the first value of each

    def part(self, stream: str) -> Part:
        """The detector of one of the series."""
        self._recent[stream] = deque(maxlen=2 * self._window)
        self._first[stream] = []
        return Part(self, stream)

    def take(self, stream: str, value: float) -> None:
        self._recent[stream].append(value)
        self.start.setdefault(stream, value)
        first = self._first[stream]
        if len(first) < BEGINNING:
            insort(first, value)

    def judge(self, now: float) -> Detection | None:
        if len(self._recent["chosen_reward"]) < 2 * self._window or now >= self._begun("chosen_reward"):
            return None
        rules, logp = self._rules, self._level("chosen_logp")
        chosen, margin = self._level("chosen_reward"), self._level("reward_margin")
        if rules.displaced_times is None or chosen is None or margin is None or logp is None:
            return None
        lost, gained = self._begun("chosen_reward") - chosen, max(margin, 0.0)
        begun = min(self._begun("chosen_logp"), -1e-9)
        if lost <= 0 or begun - logp < rules.displaced_nats:
            return None
        displaced = lost > gained and logp < _LESS_LIKELY * begun
        if logp >= rules.displaced_times * begun and not (displaced and self._learned_nothing()):
            return None
        seen = f"at {figure(logp)}, {logp / begun:.1f} times its first {figure(begun)}"
        return Detection(Level.CRITICAL, f"the preferred answers' log-probability stands {seen}")

    def _learned_nothing(self) -> bool:
        """Whether the margin or the accuracy is below its beginning: healthy pairs are still told apart better."""
        levels = {stream: self._level(stream) for stream in ("reward_margin", "reward_accuracy")}
        return any(level is not None and level < self._begun(stream) for stream, level in levels.items())

    def _begun(self, stream: str) -> float:
        first = self._first[stream]  # in order
        return first[len(first) // 2]

    def _level(self, stream: str) -> float | None:
        """Median of the last rows; None before there are enough."""
        recent = self._recent.get(stream, ())
        return sorted(recent)[self._window] if len(recent) == 2 * self._window else None


class Part(Detector):
    """One series of a `Displacement`."""

    rule = "displacement"
    __slots__ = ("_of", "_stream")

    def __init__(self, of: Displacement, stream: str) -> None:
        self._of = of
        self._stream = stream

    def update(self, step: int, value: float) -> Detection | None:
        self._of.take(self._stream, value)
        return self._of.judge(value) if self._stream == "chosen_reward" else None


_SURE = 3.0  # standard errors that a mean must have moved: every sixth healthy run's reward falls by one, by luck


class StaysZero(Detector):
    """A stream that has been exactly 0 since the first row; one row that is not 0 ends the rule for good.

    `progress`: what shows that the policy moves all the same, for a KL that was logged but not measured, as without a
    penalty on it, or printed with too few digits. Where no gradient was logged either, it may be that: a WARN.
    """

    rule = "no_learning"
    __slots__ = ("_level", "_over", "_progress", "_rows", "_seen")

    def __init__(self, rules: FactRules, level: Level, progress: Progress | None = None) -> None:
        self._progress = progress
        self._rows = rules.frozen_rows
        self._level = level
        self._seen = 0
        self._over = False

    def update(self, step: int, value: float) -> Detection | None:
        if self._over:
            return None
        if value:
            self._over = True
            return None
        self._seen += 1
        return self._judge(self._rows)

    def rests(self) -> bool:
        return self._over

    def finish(self, completed: bool) -> Detection | None:
        return None if self._over else self._judge(self._rows // 2)

    def _judge(self, rows: int) -> Detection | None:
        progress = self._progress
        if self._seen < rows or (progress is not None and (progress.gradients or progress.ahead)):
            return None
        level = Level.WARN if progress is not None and progress.gradients is None else self._level
        return Detection(level, f"exactly 0 in all {self._seen} rows so far")


class Gradients(Detector):
    """Takes note for the other rules that gradients reach a policy; finds nothing itself: a batch whose answers all
    earn the same has none."""

    rule = "no_learning"
    __slots__ = ("_progress",)

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def update(self, step: int, value: float) -> Detection | None:
        self._progress.gradients = bool(self._progress.gradients) or value > 0
        return None


def fell(early: Sequence[float], late: Sequence[float], sure: float = _SURE) -> bool:
    """Whether the mean of the last rows is lower than that of the first by more than luck explains."""
    (before, error), (after, other) = _mean(early), _mean(late)
    return before - after > sure * math.sqrt(error + other)


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its squared standard error; `statistics` is exact and takes ten times as long."""
    count = len(values)
    mean = sum(values) / count
    return mean, sum((value - mean) ** 2 for value in values) / (count - 1) / count


class Flat(Detector):
    """A loss that does not move from the first row on: exactly, or nearly (ln V, DPO's ln 2).

    Nearly: within a narrow range, and not falling in it either. The losses of DPO and KTO with a small beta, or a small
    learning rate, fall by a percent while the model learns, or not at all while the margin (`progress`) rises. `stuck`:
    rows after which it is reported.
    """

    rule = "no_learning"
    __slots__ = ("_early", "_high", "_late", "_low", "_progress", "_rows", "_rules", "_stuck")

    def __init__(self, rules: FactRules, stuck: int, progress: Progress) -> None:
        self._rules = rules
        self._stuck = stuck
        self._progress = progress
        self._early: list[float] = []
        self._late: deque[float] = deque(maxlen=rules.frozen_rows)
        self._low, self._high = math.inf, -math.inf
        self._rows = 0

    def update(self, step: int, value: float) -> Detection | None:
        self._late.append(value)
        self._rows += 1
        if value < self._low:
            self._low = value
        if value > self._high:
            self._high = value
        if len(self._early) < self._rules.frozen_rows:
            self._early.append(value)
        if self._low == self._high:
            return self._exactly(self._rules.frozen_rows)
        if self._rows < self._stuck or self._low <= 0 or self._high - self._low >= self._rules.flat_range * self._low:
            return None
        if self._progress.ahead or fell(self._early, self._late):
            return None
        return Detection(Level.CRITICAL, f"{figure(self._low)} to {figure(self._high)} in all {self._rows} rows so far")

    def finish(self, completed: bool) -> Detection | None:
        rows, rules = self._rows, self._rules
        exactly = self._exactly(rules.frozen_rows // 2) if self._low == self._high else None
        if exactly is not None or not completed or rows < rules.frozen_rows or self._progress.ahead:
            return exactly
        size = min(rules.frozen_rows, rows // 3)
        first, last = self._early[:size], list(self._late)[-size:]
        before, after = sorted(first)[size // 2], sorted(last)[size // 2]
        what = f"{figure(before)} at the start, {figure(after)} at the end of {rows} rows"
        if before > 0 and self._high - self._low < rules.flat_range * before and not fell(first, last):
            return Detection(Level.CRITICAL, what)
        if before - after >= rules.no_gain * abs(before):
            return None
        # Only reported if a gain would have shown: a few small batches tell nothing.
        return Detection(Level.WARN, what) if self._doubt(size) <= rules.no_gain_doubt * abs(before) else None

    def _doubt(self, size: int) -> float:
        """Two standard errors of the difference between the medians of the first and the last `size` rows."""
        changes = [
            abs(after - before)
            for values in (self._early[:size], list(self._late)[-size:])
            for before, after in itertools.pairwise(values)
        ]
        noise = DIFF_TO_SD * sum(changes) / len(changes)
        return 2 * MEAN_TO_SD * noise * math.sqrt(2 / size)

    def _exactly(self, rows: int) -> Detection | None:
        if self._rows < rows or not self._low:  # exactly 0 has a rule of its own
            return None
        return Detection(Level.STOP, f"exactly {figure(self._low)} in all {self._rows} rows so far")


class NoGainInReward(Detector):
    """A reward that, at the end of a run, is lower than at the start by more than luck explains, or the same: its best
    value is that of most rows, at the start and at the end, and the others are next to it, as if every answer earned
    the least there is.

    A rise too small to be told from noise is not a finding: short runs at small learning rates are like that.
    """

    rule = "no_learning"
    __slots__ = ("_best", "_early", "_late", "_rows", "_rules")

    def __init__(self, rules: FactRules) -> None:
        self._rules = rules
        self._best = -math.inf
        self._early: list[float] = []
        self._late: deque[float] = deque(maxlen=rules.frozen_rows)
        self._rows = 0

    def update(self, step: int, value: float) -> Detection | None:
        self._rows += 1
        if value > self._best:
            self._best = value
        if len(self._early) < self._rules.frozen_rows:
            self._early.append(value)
        self._late.append(value)
        return None

    def finish(self, completed: bool) -> Detection | None:
        rows, size = self._rows, self._rules.frozen_rows
        if not completed or rows < 2 * size:
            return None
        before, after = statistics.fmean(self._early), statistics.fmean(self._late)
        if fell(self._early, self._late):
            what = f"fell: {figure(before)} on average at the start, {figure(after)} at the end of {rows} rows"
        elif statistics.median(self._early) == statistics.median(self._late) == self._best and self._near(
            before, after
        ):
            what = f"never moved: at most {figure(self._best)} at the start and at the end of {rows} rows"
        else:
            return None
        return Detection(Level.WARN, what)

    def _near(self, *levels: float) -> bool:
        return self._best - min(levels) <= self._rules.flat_range * abs(self._best)
