"""From evidence to an outcome and its reason, once all metrics are known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gates.model.check_builders import label, make_check, undecided
from gates.model.policy import Policy
from gates.model.rules import MetricRule, Role, Worse
from gates.model.verdict import Check, CheckOutcome, Evidence, ReasonCode, Standing
from gates.model.wording import change, limit, p_value, quantity, runs
from gates.stats.comparisons import Comparison
from gates.stats.planning import MAX_RUNS, POWER, enough_to_block, pass_probability, runs_needed, smallest_detectable
from gates.weighing import Weighed, evidence_of

_SEEN = {
    Standing.BEYOND: "harm beyond the limit over its whole range {}; ",
    Standing.WORSE: "worse over its whole range {}; ",
    Standing.OPEN: "",
}


def conclude(
    policy: Policy, weighed: Weighed, level: float, harmful: bool, plan: Policy, power: float = POWER
) -> Check:
    """The check with its outcome. `harmful`: significantly worse at `level`, this rule's share of the level of BLOCK.

    `plan`: the policy with its full error levels, which says how many runs would decide with probability `power`.
    """
    rule, found = weighed.rule, weighed.found
    if weighed.check or not found:
        assert weighed.check
        return weighed.check
    enough = enough_to_block(policy, found.design)
    evidence = evidence_of(policy, weighed, smallest_detectable(found, level) if enough else None)
    line = _line(rule, evidence)
    within = found.p_noninferior <= policy.alpha_pass
    if within and weighed.reach:
        check = undecided(rule, f"{line}: {weighed.reach}", ReasonCode.SUSPECT_DATA)
        return replace(check, evidence=evidence, notes=weighed.notes)
    if within:
        reason = f"{line}, within the limit with {p_value(found.p_noninferior)}"
        return make_check(rule, CheckOutcome.PASS, reason, evidence=evidence, notes=weighed.notes)
    if harmful and (enough or rule.role is Role.ADVISORY):
        verb = "changed" if rule.worse is Worse.BOTH else "worse"
        reason = f"{line}{_by_median(rule, found, evidence)}, {verb} with {p_value(found.p_harm)}"
        blocks = rule.role is not Role.ADVISORY
        outcome, code = (CheckOutcome.BLOCK, ReasonCode.REGRESSION) if blocks else (CheckOutcome.WARN, None)
        return make_check(rule, outcome, reason, code, evidence, notes=weighed.notes)
    share = level / policy.alpha_block
    return _inconclusive(plan, weighed, found, evidence, line, share * plan.alpha_block, power)


def _inconclusive(
    policy: Policy,
    weighed: Weighed,
    found: Comparison,
    evidence: Evidence,
    line: str,
    alpha_block: float,
    power: float,
) -> Check:
    """A check that says what the interval shows, what is missing (runs, less noise, distance from the limit) and how
    many runs would decide."""
    rule, beyond = weighed.rule, found.harm > found.margin
    standing = evidence.standing(rule.worse is Worse.BOTH)
    alone = found.design.baseline_runs == found.design.candidate_runs == 1
    least = max(2, policy.min_candidate_runs, policy.min_baseline_runs) if beyond else 1 + alone
    needed = partial(runs_needed, found, alpha_pass=policy.alpha_pass, alpha_block=alpha_block, power=power)
    harmless, at_estimate = needed(truth=0.0, least=1 + alone), needed(truth=max(0.0, found.harm), least=least)
    could_pass = not alone and pass_probability(found, found.design, 0.0, policy.alpha_pass) >= power
    if harmless is None and at_estimate and standing is Standing.BEYOND:
        code, more = ReasonCode.TOO_FEW_RUNS, at_estimate
        missing = f"too few runs to BLOCK, {runs(more)} per side would"
    elif harmless is None:
        code, more, missing = ReasonCode.TOO_NOISY, None, _past_deciding(policy, rule, found)
    elif not could_pass or (beyond and not enough_to_block(policy, found.design)):
        code, more = ReasonCode.TOO_FEW_RUNS, max(harmless, at_estimate or 0, least)
        other = " of other seeds" if weighed.repeated else ""
        missing = f"too few runs to decide, {runs(more)} per side{other} would"
    else:
        code, more = ReasonCode.NEAR_MARGIN, at_estimate
        missing = "too close to the limit to decide" + (f", {runs(more)} per side would" if more else "")
    sizes = f" ({runs(evidence.baseline_runs, 'baseline')}, {runs(evidence.candidate_runs, 'candidate')})"
    # A guard leaves a verdict open only where harm beyond its limit is likely.
    silent = rule.role is Role.ADVISORY or (rule.role is Role.GUARD and found.p_harm > policy.alpha_pass)
    outcome = CheckOutcome.NOT_JUDGED if silent else CheckOutcome.INCONCLUSIVE
    reason = f"{line}: {_SEEN[standing].format(_range(evidence))}{missing}{sizes}"
    code_shown = None if silent else code
    return make_check(rule, outcome, reason, code_shown, evidence, more, harmless, weighed.notes)


def _by_median(rule: MetricRule, found: Comparison, evidence: Evidence) -> str:
    """The change by the medians, if one odd run hides in the means what the other runs show."""
    if found.harms[0] > found.margin or evidence.typical is None:
        return ""
    return f"; {change(evidence.typical, evidence.relative, evidence.unit)} by the median of pairs of runs"


def _range(evidence: Evidence) -> str:
    """'[+102.1 %, +996 %]'."""
    ends = (evidence.change_low, evidence.change_high)
    return f"[{', '.join(change(end, evidence.relative, evidence.unit) for end in ends if end is not None)}]"


def _past_deciding(policy: Policy, rule: MetricRule, found: Comparison) -> str:
    """Why no number of runs would decide: these runs are too noisy, or the stated prior is too large for the limit."""
    if found.prior.kind == "shipped" and found.cautious.prior_df and found.prior.sd >= found.margin:
        return f"its prior of {rule.prior:g} is no less than its limit: state a smaller one, or let calibrate find it"
    return f"runs differ too much for this limit, no number up to {MAX_RUNS} would decide"


def _line(rule: MetricRule, evidence: Evidence) -> str:
    """'step time 21.4 ms -> 26.9 ms (+25.7 %, limit +15 %)'."""
    unit, relative = evidence.unit, evidence.relative
    assert evidence.baseline is not None
    assert evidence.candidate is not None
    assert evidence.change is not None
    assert evidence.margin is not None
    within = limit(evidence.margin, relative, unit, both=rule.worse is Worse.BOTH)
    sides = f"{quantity(evidence.baseline, unit)} -> {quantity(evidence.candidate, unit)}"
    return f"{label(rule)} {sides} ({change(evidence.change, relative, unit)}, limit {within})"
