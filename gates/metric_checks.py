"""One check per metric rule; those that decide share the level of BLOCK, and the runs that would decide them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gates.checks import conclude
from gates.evidence.pairs import Pairs
from gates.evidence.validity import superseded
from gates.model.policy import Policy
from gates.model.records import Run
from gates.model.rules import MetricRule, Role
from gates.model.sides import Side
from gates.model.summaries import SUMMARIES
from gates.model.verdict import Check, CheckOutcome
from gates.stats.comparisons import holm
from gates.stats.planning import POWER
from gates.weighing import Weighed, weigh_selected


@dataclass(frozen=True, kw_only=True)
class MetricChecks:
    """What the metrics say, and the runs per side that would decide all of them (None: no number would)."""

    checks: tuple[Check, ...]
    more_runs: int | None


def metric_checks(policy: Policy, baseline: Side, candidate: Side, plan: Policy, pairs: Pairs) -> MetricChecks:
    """One check per rule. Gate metrics share the error level alpha_block (Holm); advisory ones stand alone.

    `plan` has the error levels of all looks together: what more runs could still spend.
    """
    finished = (*baseline.finished, *candidate.finished)
    again = superseded(policy, baseline.finished, candidate.finished, pairs.beside)
    pairs = replace(pairs, made=tuple(run for run in pairs.beside if run.run_id not in again))
    left, right = ([run for run in side.finished if run.run_id not in again] for side in (baseline, candidate))
    rules = [
        rule
        for rule in (_as_judged(policy, rule, (left, right)) for rule in policy.rules)
        if rule.role is Role.GATE or (rule.role is not Role.IGNORE and any(rule.series(run) for run in finished))
    ]
    weighed = [weigh_selected(policy, rule, left, right, pairs) for rule in rules]
    gates = [item for item in weighed if item.rule.role in (Role.GATE, Role.GUARD) and item.found]
    levels = _levels(policy, gates)

    def concluded(power: float) -> tuple[Check, ...]:
        return tuple(
            conclude(policy, item, *levels.get(item.rule.name, _alone(policy, item)), plan, power) for item in weighed
        )

    checks = concluded(POWER)
    # Each decided 4 times of 5 would leave three of them open every other time.
    still_open = sum(check.outcome is CheckOutcome.INCONCLUSIVE for check in checks)
    together = concluded(POWER ** (1 / still_open)) if still_open > 1 else checks
    return MetricChecks(checks=checks, more_runs=_more_runs(together) or _more_runs(checks))


def _levels(policy: Policy, gates: Sequence[Weighed]) -> dict[str, tuple[float, bool]]:
    """Each rule's share of the level of BLOCK, and whether it shows harm (Holm): weights of those that are tested."""
    weights = [item.rule.weight for item in gates]
    rejected = holm([item.found.p_harm for item in gates if item.found], weights, policy.alpha_block)
    total = sum(weights)
    return {
        item.rule.name: (level or policy.alpha_block * item.rule.weight / total, level > 0)
        for item, level in zip(gates, rejected, strict=True)
    }


def _alone(policy: Policy, item: Weighed) -> tuple[float, bool]:
    """An advisory rule has a level of its own."""
    return policy.alpha_block, item.found is not None and item.found.p_harm <= policy.alpha_block


def _as_judged(policy: Policy, rule: MetricRule, sides: Iterable[Sequence[Run]]) -> MetricRule:
    """A rule that needs many values decides where each side has a run with so many; shorter ones have no part in it.
    And the limit of a whole run is no tighter than that of its steps."""
    if rule.reduction == "whole":  # all steps together may take as much longer as a step may
        of_steps = [other.margin for other in policy.rules if other.name == rule.metric]
        rule = replace(rule, margin=max([rule.margin, *of_steps]))
    least = SUMMARIES[rule.reduction].decides_from
    if not least or rule.role is not Role.GATE:
        return rule
    lengths = [[len(series.values) for run in side if (series := rule.series(run))] for side in sides]
    short = any(found and max(found) - policy.warmup_steps < least for found in lengths)
    return replace(rule, role=Role.ADVISORY) if short else rule


def _more_runs(checks: Sequence[Check]) -> int | None:
    """Runs per side that would decide every open metric; None when one of them no number of runs would."""
    needed = [check.more_runs for check in checks if check.outcome is CheckOutcome.INCONCLUSIVE]
    known = [runs for runs in needed if runs is not None]
    return max(known) if known and len(known) == len(needed) else None
