"""Rules that look at two series, and the state that they share."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from canary_mlflow.gates.model.wording import figure
from canary_mlflow.gates.watch.policy import BEGINNING, PatternRules
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
