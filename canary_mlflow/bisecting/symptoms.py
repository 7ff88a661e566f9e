"""What the bad end of a history shows beside the good one, and whether a commit between shows it too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from canary_mlflow.bisecting.search import Answer
from canary_mlflow.gates.evidence.clocks import judged_in_pairs
from canary_mlflow.gates.facts.exact import FACTS
from canary_mlflow.gates.judge import judge
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Run, Version
from canary_mlflow.gates.model.rules import MetricRule, Role, Scale, Worse
from canary_mlflow.gates.model.sides import baseline_side, candidate_side, conditions
from canary_mlflow.gates.model.verdict import CheckOutcome, Evidence, ReasonCode, Verdict


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """What is looked for. `key`: a kind of exception, or the check that blocks; `facts`: those that decide. `policy`:
    what the check is asked of, for a metric halfway between both ends; `timed`: it is the machine's speed, so that GOOD
    must be measured beside each commit. `seed`: that showed it."""

    key: str
    said: str
    seed: int = 0
    facts: frozenset[str] = frozenset()
    policy: Policy | None = None
    crash: bool = False
    noisy: bool = False
    timed: bool = False


def symptom_of(policy: Policy, good: Sequence[Run], bad: Sequence[Run], verdict: Verdict) -> Symptom | None:
    """The check that blocks the bad end, the most urgent first; None if none does."""
    blocking = [check for check in verdict.checks if check.outcome is CheckOutcome.BLOCK]
    if not blocking:
        return None
    check, sides = blocking[0], candidate_side(bad)
    resolved = policy.resolve(conditions(baseline_side(good, sides), sides))
    if check.role is Role.HARD:
        facts = _deciding(verdict)
        return Symptom(key=check.metric, said=check.reason, facts=facts, policy=replace(resolved, rules=()))
    rule = next(one for one in resolved.rules if one.name == check.metric)
    assert check.evidence is not None
    return Symptom(
        key=check.metric, said=check.reason, policy=_halfway(resolved, rule, check.evidence), noisy=True,
        timed=judged_in_pairs(rule),
    )  # fmt: skip


def _halfway(policy: Policy, rule: MetricRule, found: Evidence) -> Policy:
    """The policy that asks of one metric alone whether it is nearer to the bad end than to the good one."""
    assert found.change is not None
    scale = rule.scale
    if not found.relative:
        margin, scale = abs(found.change) / 2, Scale.IDENTITY
    else:
        margin = abs(math.log1p(found.change)) / 2
        if scale is Scale.LOG:
            margin = -math.expm1(-margin) if rule.worse is Worse.LOWER else math.expm1(margin)
    asked = replace(rule, role=Role.GATE, margin=margin, scale=scale, gain=None, headroom=None)
    none = replace(policy.hard, **dict.fromkeys(vars(policy.hard), False))
    return replace(policy, rules=(asked,), hard=none, evals=None, min_baseline_runs=1)


def verdict_on(policy: Policy, good: Sequence[Run], other: Sequence[Run], look: int | None = None) -> Verdict:
    """The gate's, on runs that were made in turns on one host."""
    baseline = Version(model="", version=None, runs=tuple(good), beside=True)
    return judge(policy, baseline, Version(model="", version=None, runs=tuple(other)), look=look)


def hard_answer(symptom: Symptom, good: Sequence[Run], other: Sequence[Run]) -> tuple[Answer, str]:
    """Whether a hard check or the facts block as they do at the bad end."""
    assert symptom.policy is not None
    verdict = verdict_on(symptom.policy, good, other)
    blocking = [one for one in verdict.checks if one.metric == symptom.key and one.outcome is CheckOutcome.BLOCK]
    if blocking and (symptom.key != FACTS or symptom.facts & _deciding(verdict)):
        return Answer.BAD, blocking[0].reason
    apart = [one for one in verdict.checks if one.reason_code is ReasonCode.NOT_COMPARABLE]
    return (Answer.UNTESTABLE, apart[0].reason) if apart and symptom.key == FACTS else (Answer.GOOD, "")


def metric_answer(
    symptom: Symptom, good: Sequence[Run], other: Sequence[Run], level: float, least: int
) -> tuple[Answer | None, str]:
    """Whether a metric is nearer to the bad end or to the good one, each wrong with no more than the chance `level`;
    None while that cannot be told. `least`: runs without which nothing is told but that two sides are identical."""
    assert symptom.policy is not None
    verdict = verdict_on(symptom.policy, good, other)
    check = next((one for one in verdict.checks if one.metric == symptom.key), None)
    if check is None or check.evidence is None:
        said = check or verdict.checks[0]
        busy = said.reason_code is ReasonCode.INVALID_ENVIRONMENT  # it may be quieter for the next pair
        return (None if busy else Answer.UNTESTABLE), said.reason
    found = check.evidence
    if found.identical:
        return Answer.GOOD, check.reason
    if len(other) < least or found.p_harm is None or found.p_noninferior is None:
        return None, check.reason
    if found.p_harm <= level:
        return Answer.BAD, check.reason
    return (Answer.GOOD if found.p_noninferior <= level else None), check.reason


def _deciding(verdict: Verdict) -> frozenset[str]:
    return frozenset(one.key for one in verdict.differences if one.decides)
