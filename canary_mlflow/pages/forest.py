"""A verdict's checks on one axis: each change with its interval and its runs, in units of its limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from canary_mlflow.reports import figures, meanings, wording
from canary_mlflow.reports.decision import Decision
from canary_mlflow.reports.forest import within
from gates.evidence.readings import Reading, harm_scale, read
from gates.model.policy import Policy
from gates.model.records import Run
from gates.model.rules import MetricRule, Role
from gates.model.verdict import Check


@dataclass(frozen=True, kw_only=True)
class Dot:
    """One run of a row: its position in limits, its value as text, and which run and side it is."""

    at: float
    run_id: str
    seed: str
    side: str
    shown: str


@dataclass(frozen=True, kw_only=True)
class ForestRow:
    """One check: its cells as in every report, its runs, and the evidence."""

    check: Check
    cells: wording.Row
    dots: Sequence[Dot]
    facts: Sequence[tuple[str, str]]


def forest(
    decision: Decision, policy: Policy | None, baseline: Sequence[Run], candidate: Sequence[Run]
) -> list[ForestRow]:
    """The rows of the judged metrics, in the order of every report. Runs that are gone have no dots."""
    checks = {check.metric: check for check in decision.verdict.checks if check.role is not Role.HARD}
    rules = {rule.name: rule for rule in policy.rules} if policy is not None else {}
    return [
        forest_row(checks[cells.metric], cells, policy, rules.get(cells.metric), baseline, candidate)
        for cells in wording.judged(decision)
    ]


def forest_row(
    check: Check,
    cells: wording.Row,
    policy: Policy | None,
    rule: MetricRule | None,
    baseline: Sequence[Run],
    candidate: Sequence[Run],
) -> ForestRow:
    """The row of a check."""
    found = check.evidence
    margin = found.margin if found is not None else None
    known = margin and policy is not None and rule is not None
    dots = dots_of(policy, rule, baseline, candidate, margin) if known else []  # type: ignore[arg-type]
    return ForestRow(check=check, cells=cells, dots=dots, facts=facts_of(check))


def dots_of(
    policy: Policy, rule: MetricRule, baseline: Sequence[Run], candidate: Sequence[Run], margin: float
) -> list[Dot]:
    """A dot for each run: its change against the middle of the baseline, in limits."""
    left, right = read(policy, rule, baseline)[0], read(policy, rule, candidate)[0]
    if not left or not right:
        return []
    scale = harm_scale(policy, rule, left, right)
    if isinstance(scale, str):
        return []
    middle = sum(scale.harm(one) for one in left) / len(left)

    def dot(reading: Reading, side: str) -> Dot:
        change = scale.change(scale.harm(reading) - middle)
        seed = "" if reading.seed is None else str(reading.seed)
        shown = figures.quantity(reading.value, rule.unit)
        return Dot(at=within(change / margin), run_id=reading.run_id, seed=seed, side=side, shown=shown)

    return [*(dot(one, "baseline") for one in left), *(dot(one, "candidate") for one in right)]


def facts_of(check: Check) -> list[tuple[str, str]]:
    """(label, text) for the rest of the evidence."""
    found = check.evidence
    if found is None:
        return []
    facts: Mapping[str, object] = {
        "runs": f"{found.candidate_runs} against {found.baseline_runs}{', paired by seed' if found.paired else ''}",
        "chance of this if nothing were worse": probability(found.p_harm),
        "chance of this if it were worse than the limit": probability(found.p_noninferior),
        "smallest harm these runs would show": meanings.detectable(found),
        "spread between runs": "" if found.spread is None else f"{found.spread:.3g}",
        "spread comes from": found.prior,
        "runs per side that would decide": "" if check.more_runs is None else str(check.more_runs),
    }
    return [(name, str(value)) for name, value in facts.items() if value]


def probability(p: float | None) -> str:
    """`0.012`, or `under 0.0001`; '' for None."""
    return "" if p is None else "under 0.0001" if p < 0.0001 else f"{p:.2g}"
