"""What figures mean: a row's meaning in a few words, and how to read ranges and brackets."""

from __future__ import annotations

from canary_mlflow.reports import figures
from canary_mlflow.reports.decision import Decision
from canary_mlflow.reports.forest import both_ways
from gates.model.rules import Role
from gates.model.verdict import Check, CheckOutcome, Evidence, ReasonCode, Standing

KINDS = {
    "calibrated": "as calibrated here",
    "learnt": "as learnt from several sessions",
}
WITHIN = "within the limit"
HARM = {
    Standing.BEYOND: "harm beyond the limit, over the whole range",
    Standing.WORSE: "worse over the whole range, perhaps beyond the limit",
}


def standing(decision: Decision, check: Check) -> Standing:
    """What the whole range of a check's change says."""
    both = both_ways(decision.verdict.policy, check.metric)
    return check.evidence.standing(both) if check.evidence else Standing.OPEN


def meaning(decision: Decision, check: Check) -> str:
    """What a row's figures mean; without figures, the judge's own reason."""
    found = check.evidence
    if found is None:
        return check.reason
    if check.outcome is CheckOutcome.PASS:
        return WITHIN if found.within else "beyond the limit, but nothing takes longer for it"
    if check.outcome in (CheckOutcome.BLOCK, CheckOutcome.WARN):
        return "beyond the limit"
    if (shown := standing(decision, check)) is not Standing.OPEN:
        return f"{HARM[shown]}; {missing(check)}"
    size = "" if check.role is Role.ADVISORY else detectable(found)
    said = f"no change and harm are both possible; {missing(check)}"
    return f"{said}; harm of {size} would show" if size else said


def missing(check: Check) -> str:
    """What a decision would take, as a clause."""
    if check.reason_code is ReasonCode.NEAR_MARGIN and not check.more_runs:
        return "too close to the limit for any number of runs"
    if check.more_runs:
        return f"{check.more_runs} runs per side would tell"
    return "only runs that differ less would tell"


def detectable(found: Evidence) -> str:
    """The size of the smallest harm that these runs would have shown, in the unit of the change."""
    size = found.smallest_detectable
    return "" if size is None else figures.change(size, relative=found.relative, unit=found.unit).removeprefix("+")


def how_to_read(decision: Decision) -> str:
    """The rules behind ranges and brackets; '' if there are none."""
    shown = [(check.role, check.evidence) for check in decision.verdict.checks if check.evidence is not None]
    text = ""
    if any(evidence.change_low is not None for _, evidence in shown):
        text += f" A metric passes when the whole range of its change{confidence(decision)} is within the limit."
    passed = [check.evidence for check in decision.verdict.checks if check.outcome is CheckOutcome.PASS]
    if any(evidence is not None and not evidence.within for evidence in passed):
        text += " A tail or a drift of the step time also passes where nothing takes longer for it."
    if any(evidence.unit == "kernels" for _, evidence in shown):
        text += " (Kernels: CPU time, in units of a fixed computation timed beside the steps.)"
    kinds = sorted({evidence.prior for _, evidence in shown if evidence.prior} - {"shipped"})
    if kinds:
        text += f" (Spread between runs: {', '.join(KINDS[kind] for kind in kinds)}.)"
    if any(role is Role.ADVISORY for role, _ in shown):
        text += " (In brackets: advice, decides nothing.)"
    return text


def confidence(decision: Decision) -> str:
    """` (90 % confidence)`: a range leaves out `alpha_pass` at each end; half of that if both directions are harm."""
    alpha, rules = decision.verdict.policy.get("alpha_pass"), decision.verdict.policy.get("rules", {})
    if not isinstance(alpha, float):
        return ""
    ranges = [check for check in decision.verdict.checks if check.evidence and check.evidence.change_low is not None]
    shown = [rules.get(check.metric, {}) for check in ranges]
    two_sided = any(rule.get("worse") == "both" for rule in shown)
    besides = f", {100 * (1 - alpha):.4g} % where it may change neither way" if two_sided else ""
    return f" ({100 * (1 - 2 * alpha):.4g} % confidence{besides})"
