"""Differences too large for two runs of one workload: a mistake in a file or its unit, or a machine in trouble."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np

from gates.evidence.readings import HarmScale, Reading
from gates.model.rules import MetricRule, Worse
from gates.model.wording import quantity

MOST_MIB = 1e7
"""10 TiB: more than any machine has for one training, and 10 MiB in bytes, less than any training takes."""
FAR = 5.0
"""Times apart, for two runs of a side: a slip of the pen is ten times."""
TOO_GOOD = 50.0
"""Times better: no gain is believed to be as large, and a wrong unit is off by sixty or a thousand."""
SCALED, ALIKE = 3.0, 1.25
"""A loss so many times as large from its first value on, and alike but for the second factor all the way, is on another
scale: before the first update there is no harm."""
_STANDING = 0.02  # of the steps; a coarse clock may miss one


def implausible(rule: MetricRule, scale: HarmScale, baseline: Sequence[Reading], candidate: Sequence[Reading]) -> str:
    """What cannot be believed, in one clause; '' if nothing.

    Within a side: runs that are FAR apart. Between the sides: only a candidate that is TOO_GOOD; one that is as much
    worse is a regression, whatever its cause. Metrics that may move both ways (a gradient norm, a KL) do differ by such
    factors, and on the identity scale factors mean nothing. But shares are not percents, a loss that has become zero,
    or as negative as it was positive, is not a loss, and clocks do not stand still.
    """
    everyone = [*baseline, *candidate]
    if rule.info.unit == "MiB" and (found := _bytes(rule, everyone)):
        return found
    if rule.info.share:
        return _percent(rule, everyone)
    if not rule.info.repeatable and (found := _standing_clock(rule, everyone)):
        return found
    if rule.info.may_be_signed and (found := _vanished(rule, baseline, candidate)):
        return found
    if rule.info.training_loss and scale.relative and (found := _other_scale(rule, baseline, candidate)):
        return found
    if not scale.relative or rule.worse is Worse.BOTH:
        return ""
    for side in (baseline, candidate):
        if found := _odd_one(rule, side, everyone):
            return found
    here, there = (median(reading.value for reading in side) for side in (baseline, candidate))
    better = here / there if rule.worse is Worse.HIGHER else there / here
    if better < TOO_GOOD:
        return ""
    return (
        f"{rule.info.label} {_shown(here, rule)} -> {_shown(there, rule)} is {_times(better)} better: "
        "too good to be believed, perhaps a slip in one side's unit"
    )


def _odd_one(rule: MetricRule, side: Sequence[Reading], everyone: Sequence[Reading]) -> str:
    """The run of a side that is furthest off, if the side's runs are FAR apart. Of what is learned, it must be FAR off
    every other run of both sides: losses near zero differ that much by nature, and each has another beside it."""
    if max(reading.value for reading in side) < FAR * min(reading.value for reading in side):
        return ""
    middle = median(reading.value for reading in everyone)
    odd = max(side, key=lambda reading: (abs(math.log(reading.value / middle)), reading.run_id))
    others = [other.value for other in everyone if other.run_id != odd.run_id]
    if rule.info.repeatable and any(max(odd.value / other, other / odd.value) < FAR for other in others):
        return ""
    factor = max(odd.value / middle, middle / odd.value)
    return (
        f"{rule.info.label} of {odd.called} is {_shown(odd.value, rule)}, {_times(factor)} off the median of all "
        f"runs ({_shown(middle, rule)}): a slip in its file or unit, or a machine in trouble; fix it or leave it out"
    )


def _bytes(rule: MetricRule, everyone: Sequence[Reading]) -> str:
    largest = max(everyone, key=lambda reading: (reading.value, reading.run_id))
    if largest.value < MOST_MIB:
        return ""
    return f"{rule.info.label} of {largest.called} is {_shown(largest.value, rule)}: perhaps bytes; expected MiB"


def _percent(rule: MetricRule, everyone: Sequence[Reading]) -> str:
    """Percents compared with shares, or judged by a limit in shares: a limit of 0.05 would mean a twentieth of a
    percent point. Percents throughout, with a limit in percent, are a unit like any other."""
    odd = max(everyone, key=lambda reading: (reading.value, reading.run_id))
    if odd.value <= 1:
        return ""
    shown = _shown(odd.value, rule)
    if all(reading.value > 1 for reading in everyone):
        limit = f"give rules.{rule.name} a margin and a prior in percent"
        slip = f"{rule.info.label} of {odd.called} is {shown}: percent, by a limit of {rule.margin:g}"
        return "" if rule.margin >= 1 else f"{slip}; expected shares of 1, or {limit}"
    return f"{rule.info.label} of {odd.called} is {shown}, others are not above 1: perhaps percent, or a slip"


def _vanished(rule: MetricRule, baseline: Sequence[Reading], candidate: Sequence[Reading]) -> str:
    """A loss that was above zero, and now is exactly 0 at many steps, or in all runs as far below zero as half of what
    it was above: no label is left to learn from, a NaN was logged as a number, or a sign was lost. Losses that wobble
    around zero, or go a little below it, are losses."""
    if any(np.any(reading.series.finite_only().values <= 0) for reading in baseline):
        return ""
    for reading in candidate:
        count, length = int(np.count_nonzero(reading.series.values == 0)), len(reading.series.values)
        if count > _STANDING * length:
            return f"{rule.info.label} of {reading.called} is exactly 0 at {count} of {length} steps, before at none"
    here, there = (median(reading.value for reading in side) for side in (baseline, candidate))
    if max(reading.value for reading in candidate) >= 0 or there > -here / 2:
        return ""
    shown = f"{rule.info.label} {_shown(here, rule)} -> {_shown(there, rule)}"
    return f"{shown}: too good to be believed, perhaps a sign was lost"


def _other_scale(rule: MetricRule, baseline: Sequence[Reading], candidate: Sequence[Reading]) -> str:
    """A loss as many times as large, or as small, at its first value as in the run's middle and at its end."""
    sides = [[_on_the_way(reading) for reading in side] for side in (baseline, candidate)]
    before, now = (np.median(side, axis=0) for side in sides)
    resumed = any(reading.series.steps[0] > max(1, reading.series.spacing) for reading in (*baseline, *candidate))
    if resumed or not (np.all(before > 0) and np.all(now > 0)):
        return ""
    times = now / before
    if max(times) > ALIKE * min(times) or 1 / SCALED < times[0] < SCALED:
        return ""
    return (
        f"{rule.info.label} is {times[0]:.3g} times the baseline's from the first value to the last: another scale, "
        "such as a sum for a mean, on which nothing can be compared without an evaluation"
    )


def _on_the_way(reading: Reading) -> list[float]:
    """A series' first value, and the medians of its middle third and its last."""
    values = reading.series.finite_only().values
    third = max(1, len(values) // 3)
    return [float(values[0]), float(np.median(values[third : 2 * third])), float(np.median(values[-third:]))]


def _standing_clock(rule: MetricRule, everyone: Sequence[Reading]) -> str:
    """Times and costs of zero or less: the clock stood still, or the steps were never made."""
    for reading in everyone:
        values = reading.series.finite_only().values[reading.warmup :]
        count = int(np.count_nonzero(values <= 0))
        if count > _STANDING * len(values):
            return f"{rule.info.label} of {reading.called} is zero or less at {count} of {len(values)} steps"
    return ""


def _times(factor: float) -> str:
    return f"{factor:.1f} times" if factor < 1e6 else f"{factor:.1e} times"


def _shown(value: float, rule: MetricRule) -> str:
    return quantity(value, rule.info.unit)
