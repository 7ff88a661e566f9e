"""A series becomes one number per run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from canary_mlflow.gates.model.records import Series

Values = NDArray[np.float64]
Statistic = Callable[[Values], Values]
"""Values of shape (..., n), n at least 1, to numbers of shape (...)."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A way to reduce a series: the window of values that it looks at and the statistic taken there.

    `logarithmic` statistics are already logarithms of ratios, so they are judged on the identity scale.
    `single` ones need only one value; all others need the policy's `min_steps` values after warm-up. `of_progress` ones
    depend on how far a run has come, so they compare only runs of the same length. With fewer than `decides_from`
    values after warm-up, the number is too noisy to gate by and is only advice; with fewer than `guards_from`, a guard
    does not block by it either.
    """

    window: Callable[[Values, int], Values]
    statistic: Statistic
    logarithmic: bool = False
    single: bool = False
    of_progress: bool = False
    decides_from: int = 0
    guards_from: int = 0

    def __call__(self, series: Series, warmup_steps: int) -> float:
        """The run's number, in the metric's unit; NaN when no finite value is left in the window."""
        values = self.values(series, warmup_steps)
        return float(self.statistic(values)) if len(values) else math.nan

    def values(self, series: Series, warmup_steps: int) -> Values:
        """The finite values that the statistic sees. `warmup_steps` counts points of the series, not step numbers."""
        seen = self.window(series.values, warmup_steps)
        keep = np.isfinite(seen) & (np.abs(seen) < np.finfo(np.float64).max)
        return np.asarray(seen[keep])


def everything(values: Values, warmup_steps: int) -> Values:
    """All values: for peaks, which may happen while warming up, and for values measured once."""
    return values


def after_warmup(values: Values, warmup_steps: int) -> Values:
    return values[warmup_steps:]


SET_UP, MOST_SET_UP = 2.0, 0.25
"""First steps each of which takes this many times a run's middle are set-up (a compiler's), if they are no more than
this share of the run."""


def after_set_up(values: Values, warmup_steps: int) -> Values:
    """Without the warm-up and the first steps after it that belong to the set-up."""
    rest = values[warmup_steps:]
    finite = rest[np.isfinite(rest)]
    usual = ~(rest > SET_UP * np.median(finite)) if len(finite) else np.ones(len(rest), bool)
    first = int(np.argmax(usual)) if len(rest) else 0
    return rest[first:] if warmup_steps + first <= MOST_SET_UP * len(values) else rest


def last_half(values: Values, warmup_steps: int) -> Values:
    """The second half of the run, without any warm-up."""
    return values[max(warmup_steps, len(values) // 2) :]


def iqm(values: Values) -> Values:
    """Interquartile mean: the mean of the middle half. The most precise measure of location here; blind to spikes."""
    return _trimmed(values, values.shape[-1] // 4)


def trimmed_mean(values: Values) -> Values:
    """Mean without the lowest and the highest tenth."""
    return _trimmed(values, values.shape[-1] // 10)


def tail_excess(values: Values) -> Values:
    """log(mean / IQM): how much rare slow steps add. Independent of the host's speed."""
    return _log_ratio(_mean(values), iqm(values))


def drift(values: Values) -> Values:
    """log(IQM of the last third / IQM of the first): does the run get slower? Independent of the host's speed."""
    third = max(1, values.shape[-1] // 3)
    return _log_ratio(iqm(values[..., -third:]), iqm(values[..., :third]))


def _trimmed(values: Values, cut: int) -> Values:
    return _mean(np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut])


def _log_ratio(above: Values, below: Values) -> Values:
    """log(above / below); NaN where one of the two is not positive."""
    positive = (above > 0) & (below > 0)
    return np.asarray(np.log(np.where(positive, above, np.nan)) - np.log(np.where(positive, below, np.nan)))


def _mean(values: Values) -> Values:
    # Not np.mean, which takes three times as long on the short arrays that batches are.
    return np.asarray(np.add.reduce(values, axis=-1) / values.shape[-1])


SUMMARIES: dict[str, Summary] = {
    "iqm": Summary(window=after_warmup, statistic=iqm),
    "median": Summary(window=after_warmup, statistic=partial(np.median, axis=-1)),
    "mean": Summary(window=after_warmup, statistic=_mean),
    "tail_mean": Summary(window=last_half, statistic=_mean, of_progress=True),
    "tail_area": Summary(window=last_half, statistic=trimmed_mean, of_progress=True),
    "tail_excess": Summary(window=after_warmup, statistic=tail_excess, logarithmic=True, decides_from=300),
    "drift": Summary(window=after_warmup, statistic=drift, logarithmic=True, decides_from=300, guards_from=60),
    "whole": Summary(window=everything, statistic=_mean),
    "steady": Summary(window=after_set_up, statistic=_mean),
    "max": Summary(window=everything, statistic=partial(np.max, axis=-1), single=True),
    "sum": Summary(window=everything, statistic=partial(np.add.reduce, axis=-1), single=True),
    "last": Summary(window=everything, statistic=lambda values: values[..., -1], single=True, of_progress=True),
    # The mean of tokens-per-second per step over-weights fast steps; see `rate`.
    "rate": Summary(window=after_warmup, statistic=_mean),
    "per_token": Summary(window=after_warmup, statistic=_mean),
}


def rate(amounts: Series, times: Series, warmup_steps: int) -> Series:
    """A run's true rate per point, sum(amounts) / sum(times), as a series whose mean is that rate.

    Each point is amount_i * n / sum(times), so batch means of it describe the spread of the counted amounts.
    Steps that only one of the two series has are left out.
    """
    steps, here, there = np.intersect1d(amounts.steps, times.steps, return_indices=True)
    counted, seconds = amounts.values[here], times.values[there]
    total = float(np.sum(seconds[warmup_steps:]))
    n = len(seconds[warmup_steps:])
    scaled = counted * (n / total) if total > 0 else np.full(len(counted), math.nan)
    return Series(name="rate", steps=steps, values=scaled)
