"""From evidence to an outcome and its reason, once all metrics are known."""

from __future__ import annotations

from gates.comparisons import POWER, Comparison, pass_probability, runs_needed
from gates.policy import MetricRule, Policy, Role, Worse
from gates.verdict import Check, CheckOutcome, Evidence, ReasonCode
from gates.weighing import Weighed, label, make_check
from gates.wording import change, p_value, quantity, runs


def conclude(policy: Policy, weighed: Weighed, significant: bool, family: int) -> Check:
    """The check's outcome; `significant`: worse than no harm at the family's error level (Holm)."""
    rule, found, evidence = weighed.rule, weighed.found, weighed.evidence
    if weighed.check or not found or not evidence:
        assert weighed.check
        return weighed.check
    line = _line(rule, evidence)
    beyond, within = found.harm > found.margin, found.p_noninferior <= policy.alpha_pass
    if within:
        reason = f"{line}, within the limit with {p_value(found.p_noninferior)}"
        return make_check(rule, CheckOutcome.PASS, reason + weighed.note, evidence=evidence)
    if beyond and significant:
        verb = "changed" if rule.worse is Worse.BOTH else "worse"
        sure = ", beyond the limit itself with 99 % confidence" if found.p_beyond <= 0.01 else ""
        reason = f"{line}, {verb} with {p_value(found.p_harm)}{sure}{weighed.note}"
        if rule.role is Role.ADVISORY:
            return make_check(rule, CheckOutcome.WARN, reason, evidence=evidence)
        if _enough_to_block(policy, found):
            return make_check(rule, CheckOutcome.BLOCK, reason, ReasonCode.REGRESSION, evidence)
    return _inconclusive(policy, weighed, found, evidence, line, family)


def _inconclusive(
    policy: Policy, weighed: Weighed, found: Comparison, evidence: Evidence, line: str, family: int
) -> Check:
    """Say what is missing: runs, quiet, or distance from the limit; and how many runs would decide."""
    rule, alpha_block = weighed.rule, policy.alpha_block / family
    least = max(2, policy.min_candidate_runs, policy.min_baseline_runs) if found.harm > found.margin else 1
    harmless = runs_needed(found, truth=0.0, alpha_pass=policy.alpha_pass, alpha_block=alpha_block, least=1)
    at_estimate = runs_needed(
        found, truth=max(0.0, found.harm), alpha_pass=policy.alpha_pass, alpha_block=alpha_block, least=least
    )
    could_pass = pass_probability(found, found.design, 0.0, policy.alpha_pass) >= POWER
    if harmless is None:
        code, more = ReasonCode.TOO_NOISY, None
        what = "too noisy here for this limit, no number of runs up to 20 would decide"
    elif not could_pass or (found.harm > found.margin and not _enough_to_block(policy, found)):
        code, more = ReasonCode.TOO_FEW_RUNS, max(harmless, at_estimate or 0, least)
        what = f"too few runs to decide, {runs(more)} per side would"
    else:
        code, more = ReasonCode.NEAR_MARGIN, at_estimate
        what = "too close to the limit to decide" + (f", {runs(more)} per side would" if more else "")
    sizes = f" ({runs(evidence.baseline_runs, 'baseline')}, {runs(evidence.candidate_runs, 'candidate')})"
    outcome = CheckOutcome.NOT_JUDGED if rule.role is Role.ADVISORY else CheckOutcome.INCONCLUSIVE
    reason = f"{line}: {what}{sizes}{weighed.note}"
    return make_check(rule, outcome, reason, None if rule.role is Role.ADVISORY else code, evidence, more)


def _enough_to_block(policy: Policy, found: Comparison) -> bool:
    design = found.design
    return design.candidate_runs >= policy.min_candidate_runs and design.baseline_runs >= policy.min_baseline_runs


def _line(rule: MetricRule, evidence: Evidence) -> str:
    """'step time 21.4 ms -> 26.9 ms (+25.7 %, limit +15 %)'."""
    unit, relative = evidence.unit, evidence.relative
    assert evidence.baseline is not None
    assert evidence.candidate is not None
    assert evidence.change is not None
    assert evidence.margin is not None
    limit = change(evidence.margin, relative, unit)
    limit = f"+-{limit[1:]}" if rule.worse is Worse.BOTH else limit
    sides = f"{quantity(evidence.baseline, unit)} -> {quantity(evidence.candidate, unit)}"
    return f"{label(rule)} {sides} ({change(evidence.change, relative, unit)}, limit {limit})"
