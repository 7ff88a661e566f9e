"""From evidence to an outcome and its reason, once all metrics are known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gates.check_builders import label, make_check, undecided
from gates.comparisons import Comparison
from gates.matching import PAIRS
from gates.planning import MAX_RUNS, POWER, enough_to_block, pass_probability, runs_needed
from gates.policy import Policy
from gates.rules import MetricRule, Role, Worse
from gates.verdict import Check, CheckOutcome, Evidence, ReasonCode, Standing
from gates.weighing import Weighed
from gates.wording import change, limit, p_value, quantity, runs

_SEEN = {
    Standing.BEYOND: "harm beyond the limit over its whole range {}; ",
    Standing.WORSE: "worse over its whole range {}; ",
    Standing.OPEN: "",
}


def conclude(
    policy: Policy, weighed: Weighed, significant: bool, family: int, plan: Policy, power: float = POWER
) -> Check:
    """The check's outcome; `significant`: worse than no harm at the family's error level (Holm).

    `plan`: the policy with all of the error levels, for saying how many runs would decide with the chance `power`.
    """
    rule, found, evidence = weighed.rule, weighed.found, weighed.evidence
    if weighed.check or not found or not evidence:
        assert weighed.check
        return weighed.check
    line = _line(rule, evidence)
    beyond, within = found.harm > found.margin, found.p_noninferior <= policy.alpha_pass
    if within and weighed.reach:
        check = undecided(rule, f"{line}: {weighed.reach}", ReasonCode.SUSPECT_DATA)
        return replace(check, evidence=evidence, notes=weighed.notes)
    if within:
        reason = f"{line}, within the limit with {p_value(found.p_noninferior)}"
        return make_check(rule, CheckOutcome.PASS, reason, evidence=evidence, notes=weighed.notes)
    if weighed.relief:
        return make_check(rule, CheckOutcome.PASS, f"{line}, {weighed.relief}", evidence=evidence, notes=weighed.notes)
    if beyond and significant and found.shows_harm(policy.alpha_block):
        if weighed.doubt:
            doubted = f"{line}: {weighed.doubt}, so the candidate's code is not why"
            check = undecided(rule, doubted, ReasonCode.INVALID_ENVIRONMENT)
            return replace(check, evidence=evidence, notes=weighed.notes)
        verb = "changed" if rule.worse is Worse.BOTH else "worse"
        sure = ", beyond the limit itself with 99 % confidence" if found.p_beyond <= 0.01 else ""
        reason = f"{line}, {verb} with {p_value(found.p_harm)}{sure}"
        if rule.role is Role.ADVISORY:
            return make_check(rule, CheckOutcome.WARN, reason, evidence=evidence, notes=weighed.notes)
        if enough_to_block(policy, found.design):
            return make_check(rule, CheckOutcome.BLOCK, reason, ReasonCode.REGRESSION, evidence, notes=weighed.notes)
    return _inconclusive(plan, weighed, found, evidence, line, family, power)


def _inconclusive(
    policy: Policy, weighed: Weighed, found: Comparison, evidence: Evidence, line: str, family: int, power: float
) -> Check:
    """Say what the interval shows and what is missing (runs, quiet, distance from the limit), and how many runs would
    decide."""
    rule, alpha_block = weighed.rule, policy.alpha_block / family
    standing = evidence.standing(rule.worse is Worse.BOTH)
    alone = found.design.baseline_runs == found.design.candidate_runs == 1
    least = max(2, policy.min_candidate_runs, policy.min_baseline_runs) if found.harm > found.margin else 1 + alone
    needed = partial(runs_needed, found, alpha_pass=policy.alpha_pass, alpha_block=alpha_block, power=power)
    harmless, at_estimate = needed(truth=0.0, least=1 + alone), needed(truth=max(0.0, found.harm), least=least)
    could_pass = not alone and pass_probability(found, found.design, 0.0, policy.alpha_pass) >= power
    if found.too_noisy and found.harm > found.margin:
        code, (missing, more) = ReasonCode.TOO_NOISY, _by_order(found, policy.alpha_block)
    elif weighed.pairs_wait and (harmless is None or harmless > PAIRS):
        code, more, harmless = ReasonCode.TOO_FEW_RUNS, PAIRS, PAIRS
        missing = f"too few runs to decide: those of one seed agree, {PAIRS} of the baseline's seeds would make pairs"
    elif harmless is None and at_estimate and standing is Standing.BEYOND:
        code, more = ReasonCode.TOO_FEW_RUNS, at_estimate
        missing = f"too few runs to BLOCK, {runs(more)} per side would"
    elif harmless is None:
        code, more, missing = ReasonCode.TOO_NOISY, None, _past_deciding(policy, rule, found)
    elif not could_pass or (found.harm > found.margin and not enough_to_block(policy, found.design)):
        code, more = ReasonCode.TOO_FEW_RUNS, max(harmless, at_estimate or 0, least)
        other = " of other seeds" if weighed.repeated else ""
        missing = f"too few runs to decide, {runs(more)} per side{other} would"
    else:
        code, more = ReasonCode.NEAR_MARGIN, at_estimate
        missing = "too close to the limit to decide" + (f", {runs(more)} per side would" if more else "")
    sizes = f" ({runs(evidence.baseline_runs, 'baseline')}, {runs(evidence.candidate_runs, 'candidate')})"
    outcome = CheckOutcome.NOT_JUDGED if rule.role is Role.ADVISORY else CheckOutcome.INCONCLUSIVE
    reason = f"{line}: {_SEEN[standing].format(_range(evidence))}{missing}{sizes}"
    code_shown = None if rule.role is Role.ADVISORY else code
    return make_check(rule, outcome, reason, code_shown, evidence, more, harmless, weighed.notes)


def _range(evidence: Evidence) -> str:
    """'[+102.1 %, +996 %]'."""
    ends = (evidence.change_low, evidence.change_high)
    return f"[{', '.join(change(end, evidence.relative, evidence.unit) for end in ends if end is not None)}]"


def _past_deciding(policy: Policy, rule: MetricRule, found: Comparison) -> str:
    """Why no number of runs would decide: the noise of these, or a prior that is stated too large for the limit."""
    known = policy.prior_of(rule)
    if known.kind == "shipped" and found.spread.prior_df and known.sd >= rule.margin:
        return f"its prior of {known.sd:g} is no less than its limit: state a smaller one, or let calibrate find it"
    return f"runs differ too much for this limit, no number up to {MAX_RUNS} would decide"


def _by_order(found: Comparison, alpha: float) -> tuple[str, int | None]:
    """What would show harm where only the order of the runs can bear out a test, and the runs per side that takes; None
    where they are out of that order, and where these are enough for it, so that the test itself does not show harm."""
    if not found.separated:
        return "to BLOCK, every candidate run must be worse than every baseline run; some are not", None
    if found.chance_of_order <= alpha:
        return "every candidate run is worse, but they differ too much among themselves to BLOCK", None
    count = next(n for n in range(2, 100) if replace(found, design=found.design.grown(n)).chance_of_order <= alpha)
    if found.design.paired:
        return f"to BLOCK it takes {count} pairs, the candidate's run worse in each", count
    return f"to BLOCK it takes {runs(count)} per side, each worse than the baseline's worst", count


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
