"""One check per metric rule, and how many runs would decide them all. Rules that decide share the level of BLOCK."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from canary_mlflow.gates.comparing import MetricComparison, compare_metric
from canary_mlflow.gates.evidence.clocks import SURROUNDINGS, Pairs
from canary_mlflow.gates.evidence.readings import TOO_SHORT, read
from canary_mlflow.gates.evidence.rewards import parts_of
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import SUMMARIES, Run, Version
from canary_mlflow.gates.model.rules import MetricRule, Role, Worse
from canary_mlflow.gates.model.sides import Side, baseline_side, candidate_side, conditions
from canary_mlflow.gates.model.verdict import Check, CheckOutcome, Evidence, ReasonCode, Standing, check_of, undecided
from canary_mlflow.gates.model.wording import change, counted, limit, p_value, quantity
from canary_mlflow.gates.stats.comparisons import Comparison
from canary_mlflow.gates.stats.power import (
    LEAST_TO_BLOCK,
    MAX_RUNS,
    POWER,
    enough_to_block,
    pass_probability,
    runs_needed,
    smallest_detectable,
)


def metric_checks(
    policy: Policy, baseline: Side, candidate: Side, plan: Policy, pairs: Pairs, unchanged: bool = False
) -> tuple[tuple[Check, ...], int | None]:
    """One check per rule, and the runs per side that would decide all of them (None: no number would). Rules that
    decide share the error level alpha_block by weight; advisory ones stand alone.

    `plan` has the error levels of all looks together, which is what more runs could still spend. `unchanged`: nothing
    that both sides recorded was changed, so that a gain as large as a BLOCK's harm is as odd as that.
    """
    left, right = baseline.finished, candidate.finished
    parts = parts_of(policy.rules, left, right)
    rules = [
        rule
        for rule in (_as_judged(policy, rule, (left, right)) for rule in (*policy.rules, *parts))
        if rule.role is Role.GATE or (rule.role is not Role.IGNORE and any(map(rule.series, (*left, *right))))
    ]
    compared = [compare_metric(policy, rule, left, right, pairs) for rule in rules]
    tested = [item.rule for item in compared if isinstance(item, MetricComparison)]
    sharing = {rule.name: rule.weight for rule in tested if rule.blocks}
    levels = {name: policy.alpha_block * weight / sum(sharing.values()) for name, weight in sharing.items()}

    def concluded(power: float) -> tuple[Check, ...]:
        return tuple(
            item
            if isinstance(item, Check)
            else (unchanged and _too_good(policy, item, levels.get(item.rule.name, -1.0)))
            or _conclude(policy, item, levels.get(item.rule.name, policy.alpha_block), plan, power)
            for item in compared
        )

    checks = concluded(POWER)
    # If each check is decided 4 times out of 5, then of three checks at least one stays open every other time.
    still_open = sum(check.outcome is CheckOutcome.INCONCLUSIVE for check in checks)
    together = concluded(POWER ** (1 / still_open)) if still_open > 1 else checks
    return checks, _more_runs(together) or _more_runs(checks)


def too_short(policy: Policy, version: Version) -> str:
    """Why no later version could PASS against this one, however good: its runs have too few values of a metric that
    decides. '' if they have enough."""
    side = candidate_side(version.runs)
    resolved = policy.resolve(conditions(baseline_side((), side), side))
    found = [read(resolved, rule, side.finished) for rule in resolved.rules if rule.role is Role.GATE]
    problems = [why.removeprefix(f"{TOO_SHORT}: ") for values, why in found if not values and why.startswith(TOO_SHORT)]
    return problems[0] if problems else ""


def _as_judged(policy: Policy, rule: MetricRule, sides: Iterable[Sequence[Run]]) -> MetricRule:
    """The rule as these runs let it judge. A rule that needs many values decides only if each side has a run with that
    many; shorter runs take no part."""
    summary = SUMMARIES[rule.reduction]
    least = {Role.GATE: summary.decides_from, Role.GUARD: summary.guards_from}.get(rule.role, 0)
    if not least:
        return rule
    lengths = [[len(series.values) for run in side if (series := rule.series(run))] for side in sides]
    short = any(found and max(found) - policy.warmup_steps < least for found in lengths)
    return replace(rule, role=Role.ADVISORY) if short else rule


def _more_runs(checks: Sequence[Check]) -> int | None:
    """Runs per side that would decide every open metric; None if no number of runs would decide one of them."""
    needed = [check.more_runs for check in checks if check.outcome is CheckOutcome.INCONCLUSIVE]
    known = [runs for runs in needed if runs is not None]
    return max(known) if known and len(known) == len(needed) else None


_SEEN = {
    Standing.BEYOND: "harm beyond the limit over its whole range [{}]; ",
    Standing.WORSE: "worse over its whole range [{}]; ",
    Standing.OPEN: "",
}


def _conclude(policy: Policy, compared: MetricComparison, level: float, plan: Policy, power: float) -> Check:
    """The check with its outcome. `level`: this rule's share of the level of BLOCK. `plan`: the policy with its full
    error levels, which says how many runs would decide with probability `power`."""
    rule, found = compared.rule, compared.found
    enough = enough_to_block(policy, found.design)
    seen = abs(compared.scale.change(smallest_detectable(found, level))) if enough else None
    evidence = replace(compared.evidence, smallest_detectable=seen)
    line, known = _line(compared), {"evidence": evidence, "notes": compared.notes}
    if found.p_noninferior <= policy.alpha_pass:
        if compared.silent and rule.blocks:
            reason = f"{line}; but {counted(compared.silent, 'candidate run')} finished without enough of it to judge"
            return undecided(rule, reason, ReasonCode.MISSING_DATA, leaves_open=True, **known)
        reason = f"{line}, within the limit with {p_value(found.p_noninferior)}"
        return check_of(rule, CheckOutcome.PASS, reason, **known)
    if found.p_harm <= level and (enough or rule.role is Role.ADVISORY):
        wider = replace(found, margin=found.margin + math.log(SURROUNDINGS))
        if compared.excuse and rule.blocks and wider.p_harm > level:
            more = f"which alone can cost {100 * (SURROUNDINGS - 1):.0f} % more"
            reason = f"{line}; but the candidate {compared.excuse}, {more}"
            return undecided(rule, reason, ReasonCode.INVALID_ENVIRONMENT, leaves_open=True, **known)
        verb = "changed" if rule.worse is Worse.BOTH else "worse"
        reason = f"{line}{_by_median(found, evidence)}, {verb} with {p_value(found.p_harm)}"
        outcome, code = (CheckOutcome.BLOCK, ReasonCode.REGRESSION) if rule.blocks else (CheckOutcome.WARN, None)
        return check_of(rule, outcome, reason, reason_code=code, **known)
    return _inconclusive(plan, compared, evidence, line, level / policy.alpha_block * plan.alpha_block, power)


def _too_good(policy: Policy, compared: MetricComparison, level: float) -> Check | None:
    """The check of what was learned so much better that BLOCK's own test would find the same harm; None if it was
    not."""
    rule, found = compared.rule, compared.found
    mirrored = replace(found, difference=-found.difference, typical=-found.typical)
    one_way = rule.info.repeatable and rule.worse is not Worse.BOTH
    if not (one_way and mirrored.p_harm <= level and enough_to_block(policy, found.design)):
        return None
    reason = f"{_line(compared)}: too good for no change, and nothing that is recorded was changed"
    known = {"evidence": compared.evidence, "notes": compared.notes}
    return undecided(rule, reason, ReasonCode.SUSPECT_DATA, leaves_open=True, **known)


def _inconclusive(
    plan: Policy, compared: MetricComparison, evidence: Evidence, line: str, alpha_block: float, power: float
) -> Check:
    """A check that says what the interval shows, what is missing (runs, less noise, distance from the limit) and how
    many runs would decide."""
    rule, found = compared.rule, compared.found
    beyond = found.harm > found.margin
    standing = evidence.standing(rule.worse is Worse.BOTH)
    alone = found.design.baseline_runs == found.design.candidate_runs == 1
    least = max(LEAST_TO_BLOCK, plan.min_baseline_runs) if beyond else 1 + alone
    needed = partial(runs_needed, found, alpha_pass=plan.alpha_pass, alpha_block=alpha_block, power=power)
    harmless, at_estimate = needed(truth=0.0, least=1 + alone), needed(truth=max(0.0, found.harm), least=least)
    could_pass = not alone and pass_probability(found, found.design, 0.0, plan.alpha_pass) >= power
    if harmless is None and at_estimate and standing is Standing.BEYOND:
        code, more = ReasonCode.TOO_FEW_RUNS, at_estimate
        missing = f"too few runs to BLOCK, {counted(more, 'run')} per side would"
    elif harmless is None:
        code, more, missing = ReasonCode.TOO_NOISY, None, _past_deciding(rule, found)
    elif not could_pass or (beyond and not enough_to_block(plan, found.design)):
        code, more = ReasonCode.TOO_FEW_RUNS, max(harmless, at_estimate or 0, least)
        other = " of other seeds" if compared.repeated else ""
        missing = f"too few runs to decide, {counted(more, 'run')} per side{other} would"
    else:
        code, more = ReasonCode.NEAR_MARGIN, at_estimate
        missing = "too close to the limit to decide" + (f", {counted(more, 'run')} per side would" if more else "")
    sizes = f" ({counted(evidence.baseline_runs, 'baseline run')}, {counted(evidence.candidate_runs, 'candidate run')})"
    # A guard leaves a verdict open only where harm beyond its limit is likely.
    silent = rule.role is Role.ADVISORY or (rule.role is Role.GUARD and found.p_harm > plan.alpha_pass)
    ends = [evidence.change_low, evidence.change_high]
    between = [change(end, evidence.relative, evidence.unit) for end in ends if end is not None]
    reason = f"{line}: {_SEEN[standing].format(', '.join(between))}{missing}{sizes}"
    known = {"evidence": evidence, "more_runs": more, "runs_if_unchanged": harmless, "notes": compared.notes}
    return undecided(rule, reason, code, leaves_open=not silent, **known)


def _by_median(found: Comparison, evidence: Evidence) -> str:
    """The change by the medians, if one odd run hides in the means what the other runs show."""
    if found.harms[0] > found.margin or evidence.typical is None:
        return ""
    return f"; {change(evidence.typical, evidence.relative, evidence.unit)} by the median of pairs of runs"


def _past_deciding(rule: MetricRule, found: Comparison) -> str:
    """Why no number of runs would decide: these runs are too noisy, or the stated prior is too large for the limit."""
    if found.prior.kind == "shipped" and found.cautious.prior_df and found.prior.sd >= found.margin:
        return f"its prior of {rule.prior:g} is no less than its limit: state a smaller one, or let calibrate find it"
    return f"runs differ too much for this limit, no number up to {MAX_RUNS} would decide"


def _line(compared: MetricComparison) -> str:
    """'step time 21.4 ms → 26.9 ms (+25.7 %, limit +15 %)'."""
    rule, scale, evidence = compared.rule, compared.scale, compared.evidence
    unit, relative = evidence.unit, evidence.relative
    assert evidence.baseline is not None
    assert evidence.candidate is not None
    assert evidence.change is not None
    assert evidence.margin is not None
    within = limit(evidence.margin, relative, unit, both=rule.worse is Worse.BOTH)
    by_gain = (rule.gain or rule.info.reward) and not rule.own
    if by_gain and scale.scale is rule.scale and scale.margin < rule.harm_margin:
        within += " by what training gained"
    sides = f"{quantity(evidence.baseline, unit)} → {quantity(evidence.candidate, unit)}"
    return f"{rule.label} {sides} ({change(evidence.change, relative, unit)}, limit {within})"
