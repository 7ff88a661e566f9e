"""What a run must not leave: the limits that a user sets, and the band of what the champion runs did at each step."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from canary_mlflow.gates.model.records import Series
from canary_mlflow.gates.model.rules import Scale
from canary_mlflow.gates.model.wording import figure
from canary_mlflow.gates.watch.policy import BEGINNING, BandRules, Harm, RowRules, StreamRule
from canary_mlflow.gates.watch.warning import Detection, Detector, Level


class Ceiling(Detector):
    """A fixed limit that a user sets, as no number fits every scale; off for this run, with one notice, when the run's
    own beginning breaks it."""

    rule = "ceiling"
    __slots__ = ("_broken", "_inside", "_least", "_limit", "_notice", "_off", "_rows", "stream")

    def __init__(self, stream: str, limit: float, least: int, notice: Callable[[str], None]) -> None:
        self.stream = stream
        self._least = least  # rows in a row for which it must be broken
        self._limit = limit
        self._notice = notice
        self._rows = self._broken = self._inside = 0
        self._off = False

    def update(self, step: int, value: float) -> Detection | None:
        if self._off:
            return None
        self._rows += 1
        bad = value < self._limit if self.stream == "entropy" else abs(value) > self._limit
        if self._rows <= BEGINNING:
            self._broken += bad
            if self._rows == BEGINNING and 2 * self._broken >= BEGINNING:
                self._off = True
                self._notice(
                    f"ceiling {self.stream} {figure(self._limit)}: broken in {self._broken} of the first {BEGINNING} "
                    "rows already; such a limit means nothing on this run's scale, so it is off; set another, or null"
                )
            return None
        self._inside = self._inside + 1 if bad else 0
        if self._inside < self._least:
            return None
        side = "below" if self.stream == "entropy" else "beyond"
        return Detection(
            Level.CRITICAL, f"{figure(value)}, {side} the ceiling {figure(self._limit)} for {self._inside} rows"
        )


_SMOOTH = 11  # steps whose spreads are pooled: three runs at one step estimate the spread badly
_LEAP_CHANGE = 0.5  # share of the change that matters, which a single row needs
_CAUGHT_UP = 0.8  # share of what the champion's runs learned, from which on a run is no longer late
_FARTHER = 2  # times as far as any champion's run went; where those have spikes, a spike is no news


@dataclass(frozen=True, kw_only=True)
class Band:
    """Centre and spread of one stream over the champion's runs, by step, on the stream's scale.

    `farthest`: how far from the centre any of these runs was at any step.
    """

    stream: str
    runs: int
    steps: Sequence[int]
    centre: Sequence[float]
    spread: Sequence[float]
    farthest: float


def band_of(rule: StreamRule, runs: Sequence[Series]) -> Band | None:
    """The band of one stream; None if the runs do not have ten steps in common.

    The spread at a step is the runs' standard deviation, pooled over neighbouring steps and widened for the uncertainty
    of few runs: Student's t at one standard deviation of a normal.
    """
    if len(runs) < 2:
        return None
    common = runs[0].finite_only().steps
    for run in runs[1:]:
        common = np.intersect1d(common, run.finite_only().steps)
    if len(common) < BEGINNING:
        return None
    rows = np.array([run.values[np.searchsorted(run.steps, common)] for run in runs])
    scaled = np.log(np.maximum(rows, rule.floor)) if rule.scale is Scale.LOG else rows
    spread = np.std(scaled, axis=0, ddof=1)
    half = _SMOOTH // 2
    padded = np.pad(spread**2, half, mode="edge")
    pooled = np.sqrt(np.convolve(padded, np.ones(_SMOOTH) / _SMOOTH, mode="valid"))
    times = float(scipy.special.stdtrit(len(runs) - 1, scipy.special.ndtr(1.0)))
    widened = pooled * times * math.sqrt(1 + 1 / len(runs))
    least = 0.02 if rule.scale is Scale.LOG else max(float(np.median(pooled)), 1e-9)
    centre = np.median(scaled, axis=0)
    return Band(
        stream=rule.stream,
        runs=len(runs),
        steps=common.tolist(),
        centre=centre.tolist(),
        spread=np.maximum(widened, least).tolist(),
        farthest=float(np.max(np.abs(scaled - centre))),
    )


def bands_of(
    streams: Mapping[str, StreamRule], rules: BandRules, runs: Sequence[Mapping[str, Series]]
) -> dict[str, Band]:
    """The bands of all streams that at least `min_runs` of the champion's runs have."""
    bands = {}
    for name, rule in streams.items():
        found = [run[name] for run in runs if name in run]
        band = band_of(rule, found) if len(found) >= rules.min_runs else None
        if band is not None:
            bands[name] = band
    return bands


class BandDeviation(Detector):
    """Sums up by how much a run is worse than the band, beyond an allowance; changes too small to matter do not count.

    A single row is enough for a WARN if it lies farther out than anything that the champion's runs did: a learning rate
    that is far too high ruins a model within a few rows, and no sum is that quick. Half of the change that matters (on
    its scale) is then enough.

    `may_be_late`: until the run has caught up with the champion's, it is measured by the worst that their median has
    been so far. Seeds differ in when a reward begins to rise, by more than three runs can show.
    """

    rule = "band"
    __slots__ = (
        "_band", "_change", "_critical", "_height", "_late", "_log", "_recent", "_rule", "_rules", "_sign", "_way",
    )  # fmt: skip

    def __init__(self, rule: StreamRule, rules: BandRules, rows: RowRules, band: Band, *, may_be_late: bool) -> None:
        self._rule, self._rules, self._band = rule, rules, band
        worst = np.maximum if rule.worse is Harm.HIGHER else np.minimum
        late = worst.accumulate(band.centre)
        self._late = late.tolist() if may_be_late else None
        self._way = float(np.max(np.abs(late - band.centre)))  # how far the champion's runs went
        self._log = rule.scale is Scale.LOG
        self._sign = 1.0 if rule.worse is Harm.HIGHER else -1.0
        self._change = math.log(rule.warn_change) if self._log else rule.warn_change
        found = rule.critical_change
        self._critical = math.inf if found is None else math.log(found) if self._log else found
        self._height = 0.0
        self._recent: deque[float] = deque(maxlen=rows.window)

    def update(self, step: int, value: float) -> Detection | None:
        band = self._band
        at = bisect_left(band.steps, step)
        if at == len(band.steps) or band.steps[at] != step:
            return None  # the champion logged nothing here
        scaled = math.log(max(value, self._rule.floor)) if self._log else value
        centre = self._centre(at, scaled)
        gap = self._sign * (scaled - centre)
        z = gap / band.spread[at]
        change = gap if self._log else z
        self._recent.append(change)
        cut = min(max(z, -4.0), 6.0)
        self._height = min(max(0.0, self._height + cut - self._rules.allowance), 2 * self._rules.critical)
        level = self._summed()
        if level is None and self._leapt(change, z, gap):
            level = Level.WARN
        if level is None:
            return None
        usual = math.exp(centre) if self._log else centre
        return Detection(level, f"{figure(value)}, where {band.runs} runs of the champion had {figure(usual)}")

    def _centre(self, at: int, scaled: float) -> float:
        """What the run is measured by: the beginnings of the champion's runs, until it has come most of their way."""
        if self._late is None:
            return self._band.centre[at]
        if self._sign * (self._late[at] - scaled) > _CAUGHT_UP * self._way:
            self._late = None
            return self._band.centre[at]
        return float(self._late[at])

    def _leapt(self, change: float, z: float, gap: float) -> bool:
        far = z > self._rules.leap and gap > _FARTHER * self._band.farthest
        return far and change > _LEAP_CHANGE * self._change

    def _summed(self) -> Level | None:
        if self._height <= self._rules.warn:
            return None
        change = sorted(self._recent)[len(self._recent) // 2]
        if self._height > self._rules.critical and change > self._critical:
            return Level.CRITICAL
        return Level.WARN if change > self._change else None
