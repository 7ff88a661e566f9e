"""Series that are bit-equal in the seeds that both sides share: the same code, with nothing left to test."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gates.evidence.matching import by_seeds
from gates.evidence.plausibility import implausible
from gates.evidence.readings import Reading, yardstick
from gates.model.check_builders import label, make_check
from gates.model.metrics import metrics_with
from gates.model.policy import Policy
from gates.model.records import Run
from gates.model.rules import MetricRule, Scale, Worse
from gates.model.verdict import Check, CheckOutcome, Evidence
from gates.model.wording import quantity

_LOSSES = metrics_with("training_loss")


def identical(baseline: Sequence[Reading], candidate: Sequence[Reading]) -> bool:
    """True if both sides share more than half of the candidate's seeds and have bit-equal series in all of them: code
    that computes the same in these seeds computes the same in others."""
    held = by_seeds(baseline)
    shared = {reading.seed for reading in candidate} & held.keys() - {None}
    same = all(r.series.same_values(other.series) for r in candidate if r.seed in shared for other in held[r.seed])
    return bool(shared) and same and 2 * len(shared) > len({(r.seed, r.seed is None and r.run_id) for r in candidate})


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
    stick = yardstick(policy, rule, left, right)
    if isinstance(stick, str) or implausible(policy.implausible_ratio, rule, stick, left, right):
        return False
    before, now = stick.harms(left), stick.harms(others)
    better_is_harm = rule.worse is Worse.BOTH and now.min() < before.min() - stick.margin
    return bool(now.max() <= before.max() + stick.margin) and not better_is_harm


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
    return make_check(rule, CheckOutcome.PASS, f"{label(rule)} {what}", evidence=evidence, notes=notes)
