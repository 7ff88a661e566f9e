"""One metric of both sides: which of its runs stand against which, and what a test finds, or the check that needs none.

A seed affects both sides' numbers alike, so readings that share one are compared in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from canary_mlflow.gates.evidence.clocks import Pairs, crowded, excuse, judged_in_pairs
from canary_mlflow.gates.evidence.comparability import implausible, incomparable, unread, up_to_shared_end
from canary_mlflow.gates.evidence.readings import HarmScale, Reading, harm_scale, read
from canary_mlflow.gates.evidence.rewards import weighed_alike
from canary_mlflow.gates.model.metrics import MEANING, MEANINGS, metrics_with
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.rules import MetricRule, Role, Scale, Worse
from canary_mlflow.gates.model.sides import once
from canary_mlflow.gates.model.verdict import Check, CheckOutcome, Evidence, ReasonCode, check_of, undecided
from canary_mlflow.gates.model.wording import counted, listed, quantity
from canary_mlflow.gates.stats.comparisons import Comparison, compare

PAIRS = 3
"""Fewer pairs leave one degree of freedom to their differences; that of their runs as two sides rests on two and more,
and is too large where the seed has a part in it, never too small."""
_LOSSES = metrics_with("training_loss")


@dataclass(frozen=True, kw_only=True, eq=False)
class MetricComparison:
    """A rule that was tested: what was `found`, on which harm `scale`, and the `evidence` for its check. `repeated`:
    some runs share a seed, which this metric follows, and count once. `silent`: how many of the candidate's runs
    finished without a reading, and no other run of their seed has one. `excuse`: what may have raised the candidate's
    cost instead of its code, "" for nothing."""

    rule: MetricRule
    found: Comparison
    scale: HarmScale
    evidence: Evidence
    notes: tuple[str, ...]
    repeated: bool
    silent: int
    excuse: str


def compare_metric(
    policy: Policy, rule: MetricRule, left: Sequence[Run], right: Sequence[Run], pairs: Pairs
) -> MetricComparison | Check:
    """Compare one metric over the runs that are valid for it, and in which it means the same. `left`: the baseline's
    stored runs. The machine's speed is judged by the fresh baseline runs alone; for all other metrics they count like
    the stored ones."""
    if otherwise := _means_otherwise(rule, (*left, *pairs.used), right):
        return otherwise
    alike = weighed_alike(rule, once((*left, *pairs.used)), right)
    if isinstance(alike, str):
        return undecided(rule, alike, ReasonCode.NOT_COMPARABLE)
    left, right, said = alike
    of_machine = judged_in_pairs(rule)
    if pairs and of_machine:
        left, right = pairs.baseline, pairs.candidate
    elif rule.info.wall_clock and pairs.invalid:
        left, right = ([run for run in side if run.run_id not in pairs.invalid] for side in (left, right))
        if not (left and right):
            reason = f"no {'baseline' if right else 'candidate'} run has a usable clock (contended)"
            return undecided(rule, reason, ReasonCode.INVALID_ENVIRONMENT)
    found = _compare_runs(policy, rule, left, right, beside=of_machine and (bool(pairs) or pairs.together))
    return replace(found, notes=(*found.notes, *said))


def _means_otherwise(rule: MetricRule, baseline: Sequence[Run], candidate: Sequence[Run]) -> Check | None:
    """A check that says why one name stands for different metrics, if the runs' callbacks were of different versions.
    Judging goes on by the other metrics, as nothing could pass from one version to the next otherwise. A candidate that
    says anything but what this version records stays open: nobody hides a metric by another meaning or by none."""
    sides = [{run.meaning(rule.metric) for run in side} for side in (baseline, candidate)]
    if len(set.union(*sides)) < 2:
        return None
    what = listed(sorted(set.union(*sides) - {""}))
    reason = f"{rule.info.label} {what} in some of these runs and not in others: canary-mlflow's versions differ"
    return undecided(
        rule, reason, ReasonCode.NOT_COMPARABLE, leaves_open=sides[1] != {MEANINGS.get(f"{MEANING}{rule.metric}", "")}
    )


def _compare_runs(
    policy: Policy, rule: MetricRule, baseline: Sequence[Run], candidate: Sequence[Run], beside: bool
) -> MetricComparison | Check:
    """Compare one metric over whole runs or, where these do not compare because the training ends by itself, up to the
    last step that all runs reached. `beside`: the two sides' runs of a seed were made side by side."""
    found = _compared(policy, rule, baseline, candidate, beside)
    if isinstance(found, MetricComparison) or found.reason_code is not ReasonCode.NOT_COMPARABLE:
        return found
    if (cut := up_to_shared_end(baseline, candidate)) is None:
        return found
    sides, step = cut
    shared = _compared(policy, rule, *sides, beside)
    if isinstance(shared, Check):
        return found
    if shared.found.harm <= shared.found.margin and not _ends_alike(policy, rule, baseline, candidate):
        return found
    note = f"the runs end at different steps by themselves, so they are compared up to step {step}, which all reached"
    return replace(shared, notes=(*shared.notes, note))


def _ends_alike(policy: Policy, rule: MetricRule, baseline: Sequence[Run], candidate: Sequence[Run]) -> bool:
    """Whether the candidate's whole runs end no worse than the baseline's by more than the margin: neither on average,
    nor the worst of them than the baseline's worst, as runs that end early say nothing about later steps. A series that
    breaks off before its run ends could hide harm, so it does not count as alike."""
    left, right = (read(policy, rule, side)[0] for side in (baseline, candidate))
    scale = harm_scale(policy, rule, left, right)
    if isinstance(scale, str) or not all(reading.to_the_end for reading in right):
        return False
    before, now = scale.harms(left), scale.harms(right)
    ways = [(before, now), (-before, -now)] if rule.worse is Worse.BOTH else [(before, now)]
    return all(max(np.mean(b) - np.mean(a), np.max(b) - np.max(a)) <= scale.margin for a, b in ways)


def _compared(
    policy: Policy, rule: MetricRule, baseline: Sequence[Run], candidate: Sequence[Run], beside: bool
) -> MetricComparison | Check:
    """Compare one metric over these runs as they are."""
    left, why_left = read(policy, rule, baseline)
    right, why_right = read(policy, rule, candidate)
    if not left or not right:
        recorded = [[rule.series(run) for run in side] for side in (baseline, candidate)]
        there = all(any(series is not None and series.finite.any() for series in side) for side in recorded)
        return _missing(rule, left, right, why_right or why_left, there)
    notes = tuple(_notes(rule, left, right, len(baseline), len(candidate)))
    told = {name for reading in right for name in (reading.run.run_id, reading.run.seed) if name is not None}
    silent = sum(told.isdisjoint((run.run_id, run.seed)) for run in candidate)
    scale = harm_scale(policy, rule, left, right)
    repeatable = rule.info.repeatable and not silent
    if repeatable and _same_code(rule, scale, left, right) and _same_training(baseline, candidate):
        return _identity(rule, left, right, notes)
    if isinstance(scale, str):
        return undecided(rule, scale, ReasonCode.MISSING_DATA)
    if problem := implausible(rule, scale, left, right):
        return undecided(rule, problem, ReasonCode.SUSPECT_DATA)
    if problem := incomparable(rule, scale, left, right, unread(candidate, right)):
        return undecided(rule, problem, ReasonCode.NOT_COMPARABLE)
    found = _tested(rule, scale, left, right, beside)
    numbers = (found.design.baseline_runs * (found.design.averaged if found.design.paired else 1), len(right))
    repeated = numbers != (len(left), found.design.candidate_runs)
    notes = (*notes, "runs of one seed count as one") if repeated else notes
    if hidden := crowded(rule, policy.warmup_steps, candidate, baseline):
        notes = (*notes, f"the baseline {hidden}: a step that became dearer may be unseen")
    return MetricComparison(
        rule=rule,
        found=found,
        scale=scale,
        evidence=_evidence(policy, rule, scale, found, left, right),
        notes=notes,
        repeated=repeated,
        silent=silent,
        excuse=excuse(policy, rule, baseline, candidate, beside),
    )


def _missing(rule: MetricRule, left: list[Reading], right: list[Reading], why: str, there: bool) -> Check:
    """The check of a metric without readings. What decides must not pass in silence if only the baseline has it, nor a
    gate metric if both sides have it (`there`) with too few values."""
    sides = [name for name, side in (("baseline", left), ("candidate", right)) if not side]
    reason = f"{why} (in the {' and the '.join(sides)})"
    vanished = bool(left) and not right
    needed = (rule.blocks and vanished) or (rule.role is Role.GATE and (rule.must_have or there))
    return undecided(rule, reason, ReasonCode.MISSING_DATA, leaves_open=needed)


def _notes(
    rule: MetricRule, left: list[Reading], right: list[Reading], asked_left: int, asked_right: int
) -> Iterator[str]:
    """What else a reader should know about the data: dropped values, runs without the metric, unequal lengths."""
    if dropped := sum(int(np.count_nonzero(~reading.series.finite)) for reading in (*left, *right)):
        yield f"{dropped} non-finite {'value' if dropped == 1 else 'values'} left out"
    if len(left) == len(right) == 1:
        yield "evidence: prior-based, one run a side says nothing about the spread between runs"
    for side, without in (("baseline", asked_left - len(left)), ("candidate", asked_right - len(right))):
        if without:
            yield f"{counted(without, f'{side} run')} without enough data left out"
    if rule.reduction == "sum":  # of what happens now and then
        return
    if not any(reading.series.reaches(0.5, reading.last_step) for reading in (*left, *right)):
        yield "nothing from the second half of the training"
    longest = [max(len(reading.series.values) for reading in side) for side in (left, right)]
    if min(longest) < 0.9 * max(longest):
        yield f"unequal lengths: {longest[0]} against {longest[1]} values"


def _tested(
    rule: MetricRule, scale: HarmScale, left: Sequence[Reading], right: Sequence[Reading], beside: bool
) -> Comparison:
    """Test both sides' readings by one rule: in pairs, if the seeds allow it and the two of a pair have something in
    common, namely a seed that the metric follows, or the machine (`beside`: both runs of a seed were made side by
    side)."""
    before, now = by_seeds(left), by_seeds(right)
    paired = (rule.info.repeatable or beside) and len(right) >= PAIRS and _pair_up(before, now)
    sides = ([before[seed] for seed in now], [*now.values()]) if paired else (_apart(rule, left), _apart(rule, right))
    numbers = [np.array([fmean(scale.harms(runs)) for runs in side]) for side in sides]
    return compare(
        *numbers,
        margin=scale.margin,
        prior=scale.prior,
        paired=paired,
        averaged=max(1, len(left) // len(sides[0])),
        two_sided=rule.worse is Worse.BOTH,
    )


def _apart(rule: MetricRule, readings: Sequence[Reading]) -> list[list[Reading]]:
    """What has a number of its own: each run, or each seed if the metric follows its seed. Runs of one seed then repeat
    each other, and counting each of them blocked up to 12 % of unchanged sides."""
    seeds = by_seeds(readings) if rule.info.repeatable else {None: [*readings]}
    alone = [[reading] for reading in seeds.pop(None, [])]
    return [*seeds.values(), *alone]


Seeds = dict[int | None, list[Reading]]


def by_seeds(readings: Sequence[Reading]) -> Seeds:
    """The readings of each seed; None: those without one."""
    found: Seeds = {}
    for reading in readings:
        found.setdefault(reading.run.seed, []).append(reading)
    return found


def _pair_up(left: Seeds, right: Seeds) -> bool:
    """Whether every reading has its part in a pair, equally many of the baseline's for each seed. Nor may the candidate
    have a seed twice: the names of its runs would then decide which stands against which."""
    often = [{len(runs) for runs in side.values()} for side in (left, right)]
    return None not in left and left.keys() == right.keys() and len(often[0]) == 1 and often[1] == {1}


def _same_code(rule: MetricRule, scale: HarmScale | str, left: list[Reading], right: list[Reading]) -> bool:
    """Whether the readings are what equal code gives: identical in the shared seeds, and in the candidate's other seeds
    neither worse than the baseline's worst by more than the margin, nor beyond belief."""
    if not _identical(left, right):
        return False
    held = {reading.run.seed for reading in left}
    others = [reading for reading in right if reading.run.seed not in held]
    if not others:
        return True
    if isinstance(scale, str) or implausible(rule, scale, left, right):
        return False
    before, now = scale.harms(left), scale.harms(others)
    better_is_harm = rule.worse is Worse.BOTH and now.min() < before.min() - scale.margin
    return bool(now.max() <= before.max() + scale.margin) and not better_is_harm


def _identical(baseline: Sequence[Reading], candidate: Sequence[Reading]) -> bool:
    """True if both sides share more than half of the candidate's seeds and have bit-equal series in all of them: code
    that computes the same in these seeds computes the same in others."""
    mine, held = by_seeds(candidate), by_seeds(baseline)
    without_seed = len(mine.pop(None, []))
    shared = mine.keys() & held.keys()
    same = all(now.series.same_values(then.series) for seed in shared for now in mine[seed] for then in held[seed])
    return bool(shared) and same and 2 * len(shared) > len(mine) + without_seed


def _same_training(baseline: Sequence[Run], candidate: Sequence[Run]) -> bool:
    """False if runs of one seed recorded different training losses: a number that they share, such as 48 of 64 right
    answers, is then equal by chance."""
    return all(
        run.series[name].same_values(other.series[name])
        for run in candidate
        for other in baseline
        for name in _LOSSES
        if run.seed == other.seed and name in run.series and name in other.series
    )


def _identity(rule: MetricRule, left: list[Reading], right: list[Reading], notes: tuple[str, ...]) -> Check:
    """PASS by identity: nothing is left to test."""
    seeds, held = ({reading.run.seed for reading in side} for side in (right, left))
    mean = fmean(reading.value for reading in right if reading.run.seed in held)
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


def _evidence(
    policy: Policy,
    rule: MetricRule,
    scale: HarmScale,
    found: Comparison,
    left: Sequence[Reading],
    right: Sequence[Reading],
) -> Evidence:
    """The numbers behind the check of a metric that was tested, as changes of the metric."""
    low, high = sorted(scale.change(end) for end in found.interval(policy.alpha_pass))
    return Evidence(
        unit=rule.unit,
        baseline=scale.centre(left),
        candidate=scale.centre(right),
        baseline_runs=len(left),
        candidate_runs=len(right),
        relative=scale.relative,
        change=scale.change(found.difference),
        change_low=low,
        change_high=high,
        margin=scale.change(scale.margin),
        p_harm=found.p_harm,
        p_noninferior=found.p_noninferior,
        paired=found.design.paired,
        typical=scale.change(found.typical),
        spread=math.sqrt(found.spread.variance),
        prior=scale.prior.kind,
        prior_sd=scale.prior.sd,
        prior_df=scale.prior.df,
    )
