"""One metric of both sides: its evidence, or the check that needs none because there is nothing to test."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gates.check_builders import make_check
from gates.comparability import unread
from gates.comparisons import Comparison
from gates.design import Design
from gates.identity import identical, identity_check, same_code, same_training
from gates.levels import no_harm
from gates.matching import compare_readings, of_shared_seeds, would_pair
from gates.planning import enough_to_block, smallest_detectable
from gates.plausibility import limit_beyond_reach
from gates.policy import Policy
from gates.readings import Reading, Yardstick, read, yardstick
from gates.records import Run
from gates.rules import MetricRule, Worse
from gates.stalls import by_all_steps, constant_tokens, stalls
from gates.testability import has, measurable, missing
from gates.verdict import Check, CheckOutcome, Evidence
from gates.wording import runs


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighed:
    """A rule with what both sides say about it: `found` when it was tested, else the final `check`.

    `doubt`: why a BLOCK would not be the candidate's doing, '' for nothing. `relief`: why what is beyond the limit, or
    may be, is no harm, '' for nothing. `reach`: why what is within the limit may be harm all the same, '' for nothing.
    `repeated`: some runs are of one seed, which this metric follows, and count once. `pairs_wait`: more runs of the
    baseline's seeds would be compared in pairs, which tell more than these do. `stick`: what it was measured by.
    """

    rule: MetricRule
    check: Check | None = None
    found: Comparison | None = None
    evidence: Evidence | None = None
    notes: tuple[str, ...] = ()
    doubt: str = ""
    relief: str = ""
    reach: str = ""
    repeated: bool = False
    pairs_wait: bool = False
    stick: Yardstick | None = None

    def noting(self, note: str) -> Weighed:
        """The same with one more note."""
        if self.check:
            return replace(self, check=replace(self.check, notes=(*self.check.notes, note)))
        return replace(self, notes=(*self.notes, note))

    def detecting(self, policy: Policy, alpha: float) -> Weighed:
        """The same with the smallest harm that these runs would show at level `alpha`, where they could BLOCK."""
        found, stick = self.found, self.stick
        if not (found and stick and self.evidence and enough_to_block(policy, found.design)) or found.too_noisy:
            return self
        shown = abs(stick.change(smallest_detectable(found, alpha)))
        return replace(self, evidence=replace(self.evidence, smallest_detectable=shown))


def agree(policy: Policy, rule: MetricRule, stored: Sequence[Run], fresh: Sequence[Run]) -> bool:
    """True unless a test at 5 % says that stored and fresh runs of a baseline differ, better or worse.

    Where they do, something besides the candidate's code has changed: stored runs show that, fresh ones would hide it.
    """
    left, right = (read(policy, rule, side)[0] for side in (stored, fresh))
    stick = yardstick(policy, rule, left, right) if left and right else ""
    if isinstance(stick, str) or identical(left, right):
        return True
    found = compare_readings(policy, replace(rule, worse=Worse.BOTH), stick, left, right)
    return found.p_harm > 0.05


def weigh(
    policy: Policy,
    rule: MetricRule,
    baseline: Sequence[Run],
    candidate: Sequence[Run],
    trusted: bool = True,
) -> Weighed:
    """Compare one metric; `trusted`: no run is known to have been contended."""
    tokens = constant_tokens(policy, rule, [*baseline, *candidate]) if rule.reduction == "rate" else None
    if tokens is not None and not stalls(policy, rule, baseline, candidate):
        reason = f"a step has {tokens:.0f} tokens in every run, so this is step time again and is judged there"
        return Weighed(rule=rule, check=make_check(rule, CheckOutcome.NOT_JUDGED, reason))
    given, rule = rule, by_all_steps(policy, rule, baseline, candidate)
    left, why_left = read(policy, rule, baseline)
    right, why_right = read(policy, rule, candidate)
    if not left or not right:
        there = all(any(has(rule, run) for run in side) for side in (baseline, candidate))
        return Weighed(rule=rule, check=missing(rule, left, right, why_left, why_right, there))
    notes = tuple(_notes(left, right, len(baseline), len(candidate)))
    if rule != given:
        notes = ("by the mean of all of them: rare long ones came up, to which their middle is blind", *notes)
    if rule.info.repeatable and same_code(policy, rule, left, right) and same_training(baseline, candidate):
        return Weighed(rule=rule, check=identity_check(rule, left, right, notes))
    stick = measurable(policy, rule, left, right, unread(candidate, right))
    if isinstance(stick, Check):
        return Weighed(rule=rule, check=stick)
    if len(shared := of_shared_seeds(stick, left, right)) < len(left):
        left = shared
        notes = (*notes, "runs of one seed agree far better than runs do: judged by the seeds of both sides")
    found = compare_readings(policy, rule, stick, left, right, trusted)
    repeated = _repeated(found.design, left, right)
    notes = (*notes, "runs of one seed count as one") if repeated else notes
    if found.scheduled:
        notes = (*notes, "runs agree far better than their steps do: what these wobble by is not counted as noise")
    open_still = found.p_noninferior > policy.alpha_pass
    relief = no_harm(policy, rule, baseline, candidate) if open_still else ""
    return Weighed(
        rule=rule,
        found=found,
        evidence=_evidence(policy, rule, stick, found, left, right),
        notes=notes,
        relief=relief,
        reach=limit_beyond_reach(rule, stick, left, right),
        repeated=repeated,
        pairs_wait=open_still and would_pair(stick, left, right),
        stick=stick,
    )


def _repeated(design: Design, left: list[Reading], right: list[Reading]) -> bool:
    """Whether fewer numbers were compared than there are runs."""
    behind = design.baseline_runs * (design.averaged if design.paired else 1)
    return (behind, design.candidate_runs) != (len(left), len(right))


def _evidence(
    policy: Policy,
    rule: MetricRule,
    stick: Yardstick,
    found: Comparison,
    left: list[Reading],
    right: list[Reading],
) -> Evidence:
    low, high = sorted(stick.change(end) for end in found.interval(policy.alpha_pass))
    return Evidence(
        unit=rule.unit,
        baseline=stick.centre(stick.harms(left)),
        candidate=stick.centre(stick.harms(right)),
        baseline_runs=len(left),
        candidate_runs=len(right),
        relative=stick.relative,
        change=stick.change(found.difference),
        change_low=low,
        change_high=high,
        margin=stick.change(stick.margin),
        p_harm=found.p_harm,
        p_noninferior=found.p_noninferior,
        paired=found.design.paired,
        spread=math.sqrt(found.spread.variance),
        prior=policy.prior_of(rule).kind if found.spread.prior_df else "dropped",
    )


def _notes(left: list[Reading], right: list[Reading], asked_left: int, asked_right: int) -> Iterator[str]:
    """What a reader should know about the data besides: dropped values, runs without the metric, unequal
    lengths."""
    if dropped := sum(reading.dropped for reading in (*left, *right)):
        yield f"{dropped} non-finite {'value' if dropped == 1 else 'values'} left out"
    if len(left) == len(right) == 1:
        yield "evidence: prior-based, one run a side says nothing about the spread between runs"
    for side, without in (("baseline", asked_left - len(left)), ("candidate", asked_right - len(right))):
        if without:
            yield f"{runs(without, side)} without enough data left out"
    if not any(reading.series.reaches(0.5, reading.last_step) for reading in (*left, *right)):
        yield "nothing from the second half of the training"
    longest = [max(len(reading.series.values) for reading in side) for side in (left, right)]
    if min(longest) < 0.9 * max(longest):
        yield f"unequal lengths: {longest[0]} against {longest[1]} values"
