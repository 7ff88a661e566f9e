"""What a run's number wobbles by inside its run. Steps are not independent: only a floor under what runs differ by."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gates.summaries import SUMMARIES, Summary, Values, drift, iqm


def within_run(summary: Summary, values: Values) -> tuple[float, Values]:
    """Standard error of the run's number (0 where there are too few values to say anything), and the batches it comes
    from: the statistic of each of 5 to 20 stretches of successive values (about sqrt(n)). None of a drift, which is a
    ratio of two parts of the run."""
    if summary.single or len(values) < 20:
        return 0.0, np.empty(0)
    if summary.statistic is drift:
        return _drift_se(values), np.empty(0)
    count = min(20, max(5, round(math.sqrt(len(values)))))
    batches = summary.statistic(values[len(values) % count :].reshape(count, -1))
    return math.sqrt(_error_squared(batches)), batches


def own_variance(sides: Sequence[Sequence[Values]]) -> float:
    """Mean squared standard error of the runs' numbers, less what the batches of a side, of the same steps, have in
    common: a schedule (an evaluation every 100 steps, a longer context from the middle on) is no noise.

    Taken for noise, it left unchanged sides open whatever the runs said (tests/gates/test_stalls.py). A single event is
    a schedule only where all runs of both sides have it: once in each run of one side may be chance. Estimating the
    common part takes a share of the runs' own wobble out, too: n - 1 instead of n gives it back. Two runs or more.
    """
    together = [[batches for runs in sides for batches in runs]]
    apart = all(len(runs) > 1 and recurs(_common(runs)) for runs in sides)
    groups = sides if apart else together
    errors = [_error_squared(batches - _common(runs)) for runs in groups for batches in runs]
    return math.fsum(errors) / (len(errors) - len(groups))


def recurs(batches: Values) -> bool:
    """True unless it is one batch that differs: no other is half as far from their median."""
    if len(batches) < 2:
        return False
    far = np.sort(np.abs(batches - np.median(batches)))
    return bool(far[-2] >= 0.5 * far[-1])


def _common(runs: Sequence[Values]) -> Values:
    """The mean of each batch over the runs, the same in any order of them."""
    return np.array([math.fsum(column) / len(runs) for column in zip(*runs, strict=True)])


def _error_squared(batches: Values) -> float:
    """Of the mean of the batches. Successive differences (von Neumann) keep a trend, which is no noise, out of it."""
    variance = float(np.sum((batches[1:] - batches[:-1]) ** 2)) / (2 * (len(batches) - 1))
    return variance / len(batches) if math.isfinite(variance) else 0.0


def _drift_se(values: Values) -> float:
    """From the two thirds that a drift compares, each by itself: a schedule that makes the steps of all runs longer on
    the way (batch size, context) is no noise."""
    third, location = max(1, len(values) // 3), SUMMARIES["iqm"]
    parts = [values[:third], values[-third:]]
    if third < 20:  # too short for batches of their own; each third has 3 times the variance of the whole
        middle = abs(float(iqm(values)))
        return math.sqrt(6.0) * within_run(location, values)[0] / middle if middle else 0.0
    middles = [abs(float(iqm(part))) for part in parts]
    if not all(middles):
        return 0.0
    errors = (within_run(location, part)[0] / middle for part, middle in zip(parts, middles, strict=True))
    return math.hypot(*errors)
