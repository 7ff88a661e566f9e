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
from canary_mlflow.gates.stats.power import LEAST_TO_BLOCK

BLOCK = CheckOutcome.BLOCK
Runs = Sequence[Run]


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """What is looked for. `key`: a kind of exception (`crash`), or the check that blocks; `seed`: that showed it;
    `facts`: those that decide. `policy`: what is asked: of a `noisy` metric, whether it is past halfway to the bad end.
    `timed`: it is the machine's speed, so that GOOD must be measured beside each commit."""

    key: str
    said: str
    policy: Policy
    seed: int = 0
    facts: frozenset[str] = frozenset()
    crash: bool = False
    noisy: bool = False
    timed: bool = False


def symptom_of(policy: Policy, good: Runs, bad: Runs, verdict: Verdict) -> Symptom | None:
    """The check that blocks the bad end, the most urgent first; None if none does."""
    check = next((one for one in verdict.checks if one.outcome is BLOCK), None)
    if check is None:
        return None
    side = candidate_side(bad)
    policy = policy.resolve(conditions(baseline_side(good, side), side))
    if check.role is Role.HARD:
        asked = replace(policy, rules=())
        shown = Symptom(key=check.metric, said=check.reason, facts=_deciding(verdict), policy=asked)
        seeds = (run.seed for run in bad if hard_answer(shown, good, [run])[0] is Answer.BAD)
        return replace(shown, seed=next(seeds, None) or 0)
    rule = next(one for one in policy.rules if one.name == check.metric)
    assert check.evidence is not None
    asked = _halfway(policy, rule, check.evidence)
    return Symptom(key=check.metric, said=check.reason, policy=asked, noisy=True, timed=judged_in_pairs(rule))


def _halfway(policy: Policy, rule: MetricRule, found: Evidence) -> Policy:
    assert found.change is not None
    margin = abs(found.change) / 2
    if found.relative:
        margin = abs(math.log1p(found.change)) / 2
        if rule.scale is Scale.LOG:
            margin = -math.expm1(-margin) if rule.worse is Worse.LOWER else math.expm1(margin)
    scale = rule.scale if found.relative else Scale.IDENTITY
    asked = replace(rule, role=Role.GATE, margin=margin, scale=scale, gain=None, headroom=None)
    none = replace(policy.hard, **dict.fromkeys(vars(policy.hard), False))
    return replace(policy, rules=(asked,), hard=none, evals=None, min_baseline_runs=1)


def verdict_on(policy: Policy, good: Runs, other: Runs, look: int | None = None) -> Verdict:
    """The gate's, on runs that were made in turns on one host."""
    baseline = Version(model="", version=None, runs=tuple(good), beside=True)
    return judge(policy, baseline, Version(model="", version=None, runs=tuple(other)), look=look)


def hard_answer(symptom: Symptom, good: Runs, other: Runs) -> tuple[Answer, str]:
    """Whether a hard check or the facts block as they do at the bad end."""
    verdict = verdict_on(symptom.policy, good, other)
    for check in verdict.checks:
        same = check.metric == symptom.key and (symptom.key != FACTS or symptom.facts & _deciding(verdict))
        if same and check.outcome is BLOCK:
            return Answer.BAD, check.reason
    return Answer.GOOD, ""


def metric_answer(symptom: Symptom, good: Runs, other: Runs, level: float) -> tuple[Answer | None, bool, str]:
    """Whether a metric is nearer to the bad end or to the good one, and whether that is wrong with no more than the
    chance `level`, else it only seems so; None on a busy machine, which may be quieter for the next pair. A single run
    tells no more than that nothing changed."""
    verdict = verdict_on(symptom.policy, good, other)
    check = next((one for one in verdict.checks if one.metric == symptom.key), verdict.checks[0])
    found = check.evidence
    if found is None:
        busy = check.reason_code is ReasonCode.INVALID_ENVIRONMENT
        return (None if busy else Answer.UNTESTABLE), False, check.reason
    if found.identical:
        return Answer.GOOD, True, check.reason
    assert found.p_harm is not None
    assert found.p_noninferior is not None
    answer = Answer.BAD if found.p_harm < 1 else Answer.GOOD
    p = found.p_harm if answer is Answer.BAD else found.p_noninferior
    return answer, len(other) >= LEAST_TO_BLOCK and p <= level, check.reason


def _deciding(verdict: Verdict) -> frozenset[str]:
    return frozenset(one.key for one in verdict.differences if one.decides)
