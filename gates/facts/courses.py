"""What follows from a schedule alone, such as the learning rate, compared step by step whatever the runs' seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from canary_mlflow.gates.model.records import Run, Series
from canary_mlflow.gates.model.verdict import Difference

COURSE = "course."
EXACT = ("learning_rate",)
"""The series that follow from settings alone."""
SHIFT = 1
"""Some releases of Transformers log the rate of a step, others that of the next: a course that stands a step earlier or
later is the same."""
ROUNDED = 5e-3  # of a value's size: logs keep a few digits

Values = NDArray[np.float64]


def course_differences(baseline: Sequence[Run], candidate: Sequence[Run], group: str) -> list[Difference]:
    """Where candidate's runs leave the course of the baseline's, once for each series. None for a schedule that follows
    what a run measures, such as a plateau of its loss: there, the runs of one side differ too. Nor of policies that
    make more steps on each rollout: their schedule is stretched."""
    if len({round(run.updates, 3) for run in (*baseline, *candidate) if math.isfinite(run.updates)}) > 1:
        return []
    return [one for name in EXACT if (one := _difference(name, _recorded(baseline, name), candidate, group))]


def _difference(name: str, before: Sequence[Series], candidate: Sequence[Run], group: str) -> Difference | None:
    now = _recorded(candidate, name)
    if not (before and _agree(before) and (len(before) > 1 or _agree(now))):
        return None
    for shift in (SHIFT, 0):
        told = {run.seed: values for run in candidate for one in _recorded([run], name)
                if (values := _leaves(one, before, shift))}  # fmt: skip
        for here, there in list(told.values())[:1]:
            seeds = tuple(seed for seed in told if seed is not None and len(told) < len(now))
            return Difference(key=COURSE + name, baseline=here, candidate=there, group=group, seeds=seeds,
                              rounding=not shift)  # fmt: skip
    return None


def _leaves(series: Series, before: Sequence[Series], shift: int) -> tuple[str, str] | None:
    """Both values where a run is furthest from the course of the others, and since when; None if it stays on it."""
    begin, end = min(one.steps[0] for one in before), max(one.steps[-1] for one in before)
    rows = (series.steps >= begin) & (series.steps <= end)
    steps, values = series.steps[rows].astype(float), series.values[rows]
    low, high = _between(before, steps, shift)
    slack = ROUNDED * np.maximum(np.abs(values), high)
    apart = (values < low - slack) | (values > high + slack)
    if not apart.any() or apart.sum() == 1 < len(steps):  # one alone may be a corner that lies between two rows
        return None
    beyond = np.maximum(low - values, values - high)
    at, first = int(np.argmax(beyond)), int(np.argmax(apart))
    usual = float(np.interp(steps[at], before[0].steps, before[0].values))
    return f"{usual:.3g}", f"{values[at]:.3g} at step {steps[at]:.0f}, another course from step {steps[first]:.0f} on"


def _between(before: Iterable[Series], steps: Values, shift: int) -> tuple[Values, Values]:
    """The lowest and the highest value that these series may have up to so many steps away."""
    seen = [line for one in before for by in range(-shift, shift + 1) for line in _lines(one, steps + by)]
    return np.min(seen, axis=0), np.max(seen, axis=0)


def _lines(one: Series, steps: Values) -> list[Values]:
    """What a course may be at these steps: its rows, and between two of them, or beyond the last, what the straight
    lines through the rows before, around and after give. A bend, or a corner, lies among these."""
    at, slopes = one.steps.astype(float), np.diff(one.values) / np.diff(one.steps)
    around = np.clip(np.searchsorted(at, steps, side="right") - 1, 0, len(slopes) - 1)
    known = np.isin(steps, at)
    own = one.values[around] + slopes[around] * (steps - at[around])
    beside = [np.clip(around + by, 0, len(slopes) - 1) for by in (-1, 1)]
    return [own, *(np.where(known, own, one.values[i] + slopes[i] * (steps - at[i])) for i in beside)]


def _agree(found: Sequence[Series]) -> bool:
    return not any(_leaves(one, [other], SHIFT) for one, other in permutations(found, 2))


def _recorded(runs: Iterable[Run], name: str) -> list[Series]:
    held = (run.series[name].finite_only() for run in runs if name in run.series)
    return [series for series in held if len(series.steps) > 1]
