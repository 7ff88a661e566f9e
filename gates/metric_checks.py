"""One check per metric rule; those that decide share the level of BLOCK, and the runs that would decide them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gates.checks import conclude
from gates.comparisons import holm
from gates.pairs import Pairs
from gates.planning import POWER
from gates.policy import Policy
from gates.records import Run
from gates.rules import MetricRule, Role
from gates.selection import weigh_selected
from gates.sides import Side
from gates.summaries import SUMMARIES
from gates.validity import superseded
from gates.verdict import Check, CheckOutcome
from gates.weighing import Weighed


@dataclass(frozen=True, kw_only=True)
class MetricChecks:
    """What the metrics say, and the runs per side that would decide all of them (None: no number would)."""

    checks: tuple[Check, ...]
    more_runs: int | None


def metric_checks(policy: Policy, baseline: Side, candidate: Side, plan: Policy, pairs: Pairs) -> MetricChecks:
    """One check per rule. Gate metrics share the error level alpha_block (Holm); advisory ones stand alone.

    `plan` has the error levels of all looks together: what more runs could still spend.
    """
    recorded = {name for run in (*baseline.finished, *candidate.finished) for name in run.series}
    again = superseded(policy, baseline.finished, candidate.finished, pairs.beside)
    pairs = replace(pairs, made=tuple(run for run in pairs.beside if run.run_id not in again))
    left, right = ([run for run in side.finished if run.run_id not in again] for side in (baseline, candidate))
    rules = [
        rule
        for rule in (_advice_if_short(policy, rule, (left, right)) for rule in policy.rules)
        if rule.role is Role.GATE or (rule.role is Role.ADVISORY and rule.metric in recorded)
    ]
    weighed = [weigh_selected(policy, rule, left, right, pairs) for rule in rules]
    gates = [item for item in weighed if item.rule.role is Role.GATE and item.found]
    family = max(1, len(gates))
    rejected = holm([item.found.p_harm for item in gates if item.found], policy.alpha_block)
    significant = {item.rule.name for item, reject in zip(gates, rejected, strict=True) if reject}

    level = policy.alpha_block / family
    weighed = [item.detecting(policy, level if item.rule.role is Role.GATE else policy.alpha_block) for item in weighed]

    def concluded(power: float) -> tuple[Check, ...]:
        shown = ((item, _is_significant(policy, item, significant)) for item in weighed)
        return tuple(conclude(policy, item, harm, family, plan, power) for item, harm in shown)

    checks = concluded(POWER)
    # Each decided 4 times of 5 would leave three of them open every other time.
    still_open = sum(check.outcome is CheckOutcome.INCONCLUSIVE for check in checks)
    together = concluded(POWER ** (1 / still_open)) if still_open > 1 else checks
    return MetricChecks(checks=checks, more_runs=_more_runs(together) or _more_runs(checks))


def _advice_if_short(policy: Policy, rule: MetricRule, sides: Iterable[Sequence[Run]]) -> MetricRule:
    """A rule that needs many values decides where each side has a run with so many; shorter ones have no part in it."""
    least = SUMMARIES[rule.reduction].decides_from
    if not least or rule.role is not Role.GATE:
        return rule
    lengths = [[len(run.series[rule.metric].values) for run in side if rule.metric in run.series] for side in sides]
    short = any(found and max(found) - policy.warmup_steps < least for found in lengths)
    return replace(rule, role=Role.ADVISORY) if short else rule


def _is_significant(policy: Policy, item: Weighed, gates: set[str]) -> bool:
    if item.rule.role is Role.ADVISORY:
        return item.found is not None and item.found.p_harm <= policy.alpha_block
    return item.rule.name in gates


def _more_runs(checks: Sequence[Check]) -> int | None:
    """Runs per side that would decide every open metric; None when one of them no number of runs would."""
    needed = [check.more_runs for check in checks if check.outcome is CheckOutcome.INCONCLUSIVE]
    known = [runs for runs in needed if runs is not None]
    return max(known) if known and len(known) == len(needed) else None
