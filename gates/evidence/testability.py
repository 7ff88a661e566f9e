"""Why a metric cannot be tested: it is missing, there is no scale for it, or the sides' numbers are not alike."""

from __future__ import annotations

from collections.abc import Sequence

from gates.evidence.comparability import incomparable
from gates.evidence.plausibility import implausible
from gates.evidence.readings import Reading, Yardstick, yardstick
from gates.model.check_builders import make_check, undecided
from gates.model.policy import Policy
from gates.model.records import Run
from gates.model.rules import MetricRule, Role
from gates.model.verdict import Check, CheckOutcome, ReasonCode


def measurable(
    policy: Policy, rule: MetricRule, left: list[Reading], right: list[Reading], unread: Sequence[int]
) -> Yardstick | Check:
    """The yardstick for both sides, or the check that says why there is none. `unread`: the last steps of the runs
    without a number."""
    stick = yardstick(policy, rule, left, right)
    if isinstance(stick, str):
        return undecided(rule, stick, ReasonCode.MISSING_DATA)
    if problem := implausible(policy.implausible_ratio, rule, stick, left, right):
        return undecided(rule, problem, ReasonCode.SUSPECT_DATA)
    if problem := incomparable(rule, stick, left, right, unread):
        return undecided(rule, problem, ReasonCode.NOT_COMPARABLE)
    return stick


def has(rule: MetricRule, run: Run) -> bool:
    """Whether the run has a number of the rule's metric."""
    series = rule.series(run)
    return series is not None and bool(series.finite.any())


def missing(
    rule: MetricRule, left: list[Reading], right: list[Reading], why_left: str, why_right: str, there: bool
) -> Check:
    """The check of a metric without readings. A gate metric must not pass in silence if only the baseline has it, or if
    both sides have it (`there`) with too few values."""
    sides = [name for name, side in (("baseline", left), ("candidate", right)) if not side]
    reason = f"{why_right or why_left} (in the {' and the '.join(sides)})"
    vanished = bool(left) and not right
    if rule.role is Role.GATE and (rule.must_have or vanished or there):
        return make_check(rule, CheckOutcome.INCONCLUSIVE, reason, ReasonCode.MISSING_DATA)
    return make_check(rule, CheckOutcome.NOT_JUDGED, reason)
