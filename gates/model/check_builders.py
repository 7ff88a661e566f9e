"""Checks from their parts."""

from __future__ import annotations

from gates.model.rules import MetricRule, Role
from gates.model.verdict import Check, CheckOutcome, Evidence, ReasonCode


def undecided(rule: MetricRule, reason: str, code: ReasonCode) -> Check:
    """The check of a rule that these runs cannot answer: INCONCLUSIVE for a gate metric, NOT_JUDGED for others."""
    if rule.role is not Role.GATE:
        return make_check(rule, CheckOutcome.NOT_JUDGED, reason)
    return make_check(rule, CheckOutcome.INCONCLUSIVE, reason, code)


def label(rule: MetricRule) -> str:
    """How a sentence names the rule: by its metric, with the reduction if the rule does not bear the metric's name."""
    return f"{rule.info.label} ({rule.reduction})" if rule.name != rule.metric else rule.info.label


def make_check(
    rule: MetricRule,
    outcome: CheckOutcome,
    reason: str,
    code: ReasonCode | None = None,
    evidence: Evidence | None = None,
    more_runs: int | None = None,
    runs_if_unchanged: int | None = None,
    notes: tuple[str, ...] = (),
) -> Check:
    return Check(
        metric=rule.name,
        role=rule.role,
        outcome=outcome,
        reason=reason,
        reason_code=code,
        evidence=evidence,
        more_runs=more_runs,
        runs_if_unchanged=runs_if_unchanged,
        notes=notes,
    )
