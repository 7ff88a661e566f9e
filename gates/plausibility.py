"""Numbers that no two runs of one workload differ by: a slip in a file or its unit, or a machine in trouble."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from gates.policy import MetricRule, Worse
from gates.readings import Reading, Yardstick
from gates.wording import quantity

MOST_MIB = 1e7
"""10 TiB: more than any machine has for one training, and 10 MiB in bytes, less than any training takes."""


def implausible(
    ratio: float, rule: MetricRule, stick: Yardstick, baseline: Sequence[Reading], candidate: Sequence[Reading]
) -> str:
    """What cannot be believed, in one clause; '' for nothing.

    Inside a side, the largest number `ratio` times the smallest. Between the sides only where the candidate is so
    much better: that much worse is a regression, whatever its cause. Metrics that may move both ways (a gradient
    norm, a KL) do differ by such factors, and those on the identity scale know no factors; but shares are
    no percents, and a loss that becomes as negative as it was positive has lost its sign on the way.
    """
    if rule.info.unit == "MiB" and (found := _bytes(rule, [*baseline, *candidate])):
        return found
    if rule.info.share:
        return _percent(rule, [*baseline, *candidate])
    if not stick.relative:
        return _sign_lost(rule, baseline, candidate) if rule.info.may_be_signed else ""
    if rule.worse is Worse.BOTH:
        return ""
    for side in (baseline, candidate):
        found = _odd_one(ratio, rule, side, [*baseline, *candidate])
        if found:
            return found
    here, there = (median(reading.value for reading in side) for side in (baseline, candidate))
    better = here / there if rule.worse is Worse.HIGHER else there / here
    if better < ratio:
        return ""
    return (
        f"{rule.info.label} {_shown(here, rule)} -> {_shown(there, rule)} is {better:.1f} times better: "
        "too good to be believed, perhaps a slip in one side's unit"
    )


def _odd_one(ratio: float, rule: MetricRule, side: Sequence[Reading], everyone: Sequence[Reading]) -> str:
    values = [reading.value for reading in side]
    if max(values) < ratio * min(values):
        return ""
    middle = median(reading.value for reading in everyone)
    odd = max(side, key=lambda reading: (abs(math.log(reading.value / middle)), reading.run_id))
    factor = max(odd.value / middle, middle / odd.value)
    return (
        f"{rule.info.label} of run {odd.run_id} is {_shown(odd.value, rule)}, {factor:.1f} times off the median of all "
        f"runs ({_shown(middle, rule)}): a slip in its file or unit, or a machine in trouble; mend it or leave it out"
    )


def _bytes(rule: MetricRule, everyone: Sequence[Reading]) -> str:
    largest = max(everyone, key=lambda reading: (reading.value, reading.run_id))
    if largest.value < MOST_MIB:
        return ""
    return f"{rule.info.label} of run {largest.run_id} is {_shown(largest.value, rule)}: perhaps bytes; expected MiB"


def _percent(rule: MetricRule, everyone: Sequence[Reading]) -> str:
    """Percents beside shares; percents throughout are a unit like another."""
    odd = max(everyone, key=lambda reading: (reading.value, reading.run_id))
    if odd.value <= 1 or all(reading.value > 1 for reading in everyone):
        return ""
    shown = _shown(odd.value, rule)
    return f"{rule.info.label} of run {odd.run_id} is {shown}, others are not above 1: perhaps percent, or a slip"


def _sign_lost(rule: MetricRule, baseline: Sequence[Reading], candidate: Sequence[Reading]) -> str:
    """All above zero before, all below it now, and all about as large: losses that wobble about zero are not."""
    sizes = [abs(reading.value) for reading in (*baseline, *candidate)]
    crossed = min(r.value for r in baseline) > 0 > max(r.value for r in candidate)
    if not crossed or max(sizes) > 2 * min(sizes):
        return ""
    here, there = (_shown(median(reading.value for reading in side), rule) for side in (baseline, candidate))
    return f"{rule.info.label} {here} -> {there} has changed its sign: perhaps a slip in one side's file"


def _shown(value: float, rule: MetricRule) -> str:
    return quantity(value, rule.info.unit)
