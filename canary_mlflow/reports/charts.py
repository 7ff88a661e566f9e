"""What a chart shows, in pictures and on pages: curves of runs, the champion's band, warnings. Of a long series no more
points than a screen has, with the lowest and highest value of every stretch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gates.model.records import Series

Steps = NDArray[np.int64]
Values = NDArray[np.float64]

BAND = 400  # points of a band, and of a picture's curves


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """One series of one run, finite values only. `label`: the series' display name. `run`: the run's."""

    label: str
    run: str
    steps: Steps
    values: Values


@dataclass(frozen=True, kw_only=True, eq=False)
class Band:
    """The lowest and highest value at each step: several runs', or a mean minus and plus one spread."""

    steps: Steps
    low: Values
    high: Values

    def at(self, step: int) -> tuple[float, float] | None:
        """(low, high) at a step, or in the stretch that contains it; None beyond the band's ends."""
        where = int(np.searchsorted(self.steps, step, side="right")) - 1
        if where < 0 or step > int(self.steps[-1]) + (int(self.steps[-1]) - int(self.steps[0])) // len(self.steps):
            return None
        return float(self.low[where]), float(self.high[where])


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A warning on a chart."""

    step: int
    stream: str
    level: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Chart:
    """One picture. `slug`: its name as a file. `said`: sentences about what no curve can show.

    `around`: (run, the spread around its first series), if the panel has one.
    """

    title: str
    slug: str
    unit: str
    log: bool = False
    target: float | None = None
    curves: Sequence[Curve] = ()
    band: Band | None = None
    around: Sequence[tuple[str, Band]] = ()
    marks: Sequence[Mark] = ()
    said: Sequence[str] = ()


def envelope(series: Sequence[Series]) -> Band | None:
    """The lowest and highest value of several series at each step that any of them has; None if none has a finite
    one."""
    finite = [found for one in series if len((found := one.finite_only()).steps)]
    if not finite:
        return None
    steps = np.unique(np.concatenate([one.steps for one in finite]))
    low, high = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    for one in finite:
        at = np.searchsorted(steps, one.steps)
        low[at] = np.minimum(low[at], one.values)
        high[at] = np.maximum(high[at], one.values)
    return Band(steps=steps, low=low, high=high)


def spread_of(mean: Series | None, spread: Series | None) -> Band | None:
    """One spread to each side of the mean, at the steps that have both; None if there are none."""
    if mean is None or spread is None:
        return None
    mean, spread = mean.finite_only(), spread.finite_only()
    steps, here, there = np.intersect1d(mean.steps, spread.steps, return_indices=True)
    low, high = mean.values[here] - spread.values[there], mean.values[here] + spread.values[there]
    return Band(steps=steps, low=low, high=high) if len(steps) else None


def thinned(band: Band) -> Band:
    """At most BAND stretches of a band, each with its lowest low and its highest high, at its first step."""
    n = len(band.steps)
    if n <= BAND:
        return band
    starts = np.linspace(0, n, BAND, endpoint=False).astype(np.int64)
    low, high = np.minimum.reduceat(band.low, starts), np.maximum.reduceat(band.high, starts)
    return Band(steps=band.steps[starts], low=low, high=high)


def keep_peaks(steps: Steps, values: Values, most: int) -> tuple[Steps, Values]:
    """At most `most` (at least 4) of the points, in order: the first, the last, and the lowest and highest of each of
    several equal stretches. Values are finite."""
    n = len(values)
    if n <= most:
        return steps, values
    stretches = (most - 2) // 2
    edges = np.linspace(0, n, stretches + 1).astype(np.int64)
    kept = {0, n - 1}
    for start, end in pairwise(edges):
        part = values[start:end]
        kept.update((int(start + part.argmin()), int(start + part.argmax())))
    at = np.array(sorted(kept))
    return steps[at], values[at]


def keep_means(steps: Steps, values: Values, most: int) -> tuple[Steps, Values, Values, Values]:
    """(steps, means, lowest, highest) of at most `most` stretches, each at its last step. The last value is a stretch
    by itself. Values are finite, and more than `most`."""
    starts = np.append(np.linspace(0, len(values) - 1, most - 1, endpoint=False).astype(np.int64), len(values) - 1)
    counts = np.diff(np.append(starts, len(values)))
    mean = np.add.reduceat(values, starts) / counts
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return steps[starts + counts - 1], mean, low, high


def broken_in(series: Series) -> str:
    """The sentence under a chart whose series is not all numbers; '' if it is."""
    broken = series.steps[~series.finite]
    if not len(broken):
        return ""
    if len(broken) == len(series.steps):
        return f"No finite number in {len(broken)} values (NaN or infinity), from step {broken[0]} on."
    return f"{len(broken)} of {len(series.steps)} values are NaN or infinity, the first at step {broken[0]}."
