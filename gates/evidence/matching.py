"""Readings of both sides that share a seed, compared in pairs: a seed affects both sides' numbers alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from gates.evidence.plausibility import implausible
from gates.evidence.readings import HarmScale, Reading, harm_scale
from gates.model.metrics import metrics_with
from gates.model.policy import Policy
from gates.model.records import Run
from gates.model.rules import MetricRule, Scale, Worse
from gates.model.summaries import Values
from gates.model.verdict import Check, CheckOutcome, Evidence, check_of
from gates.model.wording import quantity
from gates.stats.comparisons import Comparison, compare

PAIRS = 3
"""Fewer pairs leave one degree of freedom to their differences; that of their runs as two sides rests on two and more,
and is too large where the seed has a part in it, never too small."""


def in_pairs(
    scale: HarmScale, baseline: Sequence[Reading], candidate: Sequence[Reading]
) -> tuple[Values, Values] | None:
    """For each seed, the mean of the baseline's readings, and the candidate's, both in harm units; None unless every
    reading has its part, equally many of the baseline's for each seed. Nor may the candidate have a seed twice: the
    names of its runs would then decide which stands against which."""
    left, right = by_seeds(baseline), by_seeds(candidate)
    equally_often = len({len(runs) for runs in left.values()}) == 1 and len(right) == len(candidate)
    if None in left or left.keys() != right.keys() or not equally_often:
        return None
    return _means(scale, (left[seed] for seed in right)), _means(scale, right.values())


def compare_readings(
    rule: MetricRule, scale: HarmScale, left: list[Reading], right: list[Reading], beside: bool = False
) -> Comparison:
    """Compare both sides' readings by one rule: in pairs, if the seeds allow it and the two of a pair have something in
    common, namely a seed that the metric follows, or the machine (`beside`: both runs of a seed were made side by
    side)."""
    shared = rule.info.repeatable or beside
    pairs = in_pairs(scale, left, right) if shared and len(right) >= PAIRS else None
    before, now = pairs or (apart(rule, scale, left), apart(rule, scale, right))
    return compare(
        before,
        now,
        margin=scale.margin,
        prior=scale.prior,
        paired=pairs is not None,
        averaged=max(1, len(left) // len(before)),
        two_sided=rule.worse is Worse.BOTH,
    )


def apart(rule: MetricRule, scale: HarmScale, readings: Sequence[Reading]) -> Values:
    """One number per run, or per seed if the metric follows its seed: runs of one seed then repeat each other, and
    counting each of them blocked up to 12 % of unchanged sides."""
    if not rule.info.repeatable:
        return scale.harms(readings)
    groups = by_seeds(readings)
    alone = [[reading] for reading in groups.pop(None, [])]
    return _means(scale, [*groups.values(), *alone])


def _means(scale: HarmScale, groups: Iterable[Sequence[Reading]]) -> Values:
    return np.array([math.fsum(scale.harms(runs)) / len(runs) for runs in groups])


def by_seeds(readings: Sequence[Reading]) -> dict[int | None, list[Reading]]:
    """The readings of each seed; None: those without one."""
    found: dict[int | None, list[Reading]] = {}
    for reading in readings:
        found.setdefault(reading.seed, []).append(reading)
    return found


_LOSSES = metrics_with("training_loss")


def identical(baseline: Sequence[Reading], candidate: Sequence[Reading]) -> bool:
    """True if both sides share more than half of the candidate's seeds and have bit-equal series in all of them: code
    that computes the same in these seeds computes the same in others."""
    mine, held = by_seeds(candidate), by_seeds(baseline)
    without_seed = len(mine.pop(None, []))
    shared = mine.keys() & held.keys()
    same = all(now.series.same_values(then.series) for seed in shared for now in mine[seed] for then in held[seed])
    return bool(shared) and same and 2 * len(shared) > len(mine) + without_seed


def same_training(baseline: Sequence[Run], candidate: Sequence[Run]) -> bool:
    """False if runs of one seed recorded different training losses: a number that they share, such as 48 of 64 right
    answers, is then equal by chance."""
    return all(
        run.series[name].same_values(other.series[name])
        for run in candidate
        for other in baseline
        for name in _LOSSES
        if run.seed == other.seed and name in run.series and name in other.series
    )


def same_code(policy: Policy, rule: MetricRule, left: list[Reading], right: list[Reading]) -> bool:
    """Whether the readings are what equal code gives: identical in the shared seeds, and in the candidate's other seeds
    neither worse than the baseline's worst by more than the margin, nor beyond belief."""
    if not identical(left, right):
        return False
    held = {reading.seed for reading in left}
    others = [reading for reading in right if reading.seed not in held]
    if not others:
        return True
    scale = harm_scale(policy, rule, left, right)
    if isinstance(scale, str) or implausible(rule, scale, left, right):
        return False
    before, now = scale.harms(left), scale.harms(others)
    better_is_harm = rule.worse is Worse.BOTH and now.min() < before.min() - scale.margin
    return bool(now.max() <= before.max() + scale.margin) and not better_is_harm


def identity_check(rule: MetricRule, left: list[Reading], right: list[Reading], notes: tuple[str, ...]) -> Check:
    """PASS by identity: nothing is left to test."""
    seeds, held = ({reading.seed for reading in side} for side in (right, left))
    both = [reading.value for reading in right if reading.seed in held]
    mean = math.fsum(both) / len(both)
    evidence = Evidence(
        unit=rule.unit,
        baseline=mean,
        candidate=mean,
        baseline_runs=len(left),
        candidate_runs=len(right),
        relative=rule.scale is Scale.LOG,
        change=0.0,
        paired=True,
        identical=True,
    )
    shared = len(seeds & held)
    where = f"all {shared} seeds" if shared == len(seeds) else f"both sides' {shared} seeds"
    what = f"{quantity(mean, rule.unit)}, bit-identical in {where}" if len(seeds) > 1 else "bit-identical"
    return check_of(rule, CheckOutcome.PASS, f"{rule.label} {what}", evidence=evidence, notes=notes)
