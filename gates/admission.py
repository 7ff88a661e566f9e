"""What stands in the way of a comparison: no runs, no baseline, different work or different hardware."""

from __future__ import annotations

from dataclasses import replace

from gates.evidence.pairs import Pairs
from gates.model.records import Version
from gates.model.rules import Role
from gates.model.sides import Side, broken_off, mismatches
from gates.model.verdict import Check, CheckOutcome, ReasonCode
from gates.model.wording import listed, runs


def obstacles(baseline: Version | None, left: Side, right: Side, pairs: Pairs) -> list[Check]:
    """The checks that say why the sides cannot be compared, worst first; empty if they can be."""
    if not right.evidence:
        code = ReasonCode.BROKEN_OFF if broken_off(right) else ReasonCode.MISSING_DATA
        return [_impossible("runs", _no_evidence("candidate", right), code)]
    if baseline is None:
        return [_impossible("baseline", "there is no baseline to compare with", ReasonCode.NO_BASELINE)]
    if not left.evidence:
        return [_impossible("baseline", _no_evidence("baseline", left), ReasonCode.MISSING_DATA)]
    found = []
    fresh = replace(left, evidence=(*left.evidence, *pairs.made))
    for what in ("workload", "hardware"):
        if keys := mismatches(fresh, right, what):
            changed = [f"{item.key}: {item.baseline} -> {item.candidate}" for item in keys]
            reason = f"the {what} is not the same ({listed(changed, most=len(changed))})"
            found.append(_impossible(what, reason, ReasonCode.NOT_COMPARABLE))
    if not found and not right.finished:
        found.append(_impossible("runs", "no candidate run finished", ReasonCode.MISSING_DATA))
    return found


def _no_evidence(name: str, side: Side) -> str:
    if not side.runs:
        return f"the {name} has no runs"
    return f"none of the {name}'s {runs(len(side.runs))} is evidence ({listed(side.left_out)})"


def _impossible(what: str, reason: str, code: ReasonCode) -> Check:
    return Check(metric=what, role=Role.HARD, outcome=CheckOutcome.INCONCLUSIVE, reason=reason, reason_code=code)
