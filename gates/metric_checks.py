"""One check per metric rule, and how many runs would decide them all. Rules that decide share the level of BLOCK."""

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
    """The checks of the metrics, and the runs per side that would decide all of them (None: no number would)."""

    checks: tuple[Check, ...]
    more_runs: int | None


def metric_checks(policy: Policy, baseline: Side, candidate: Side, plan: Policy, pairs: Pairs) -> MetricChecks:
    """One check per rule. Gate metrics share the error level alpha_block (Holm); advisory ones stand alone.

    `plan` has the error levels of all looks together, which is what more runs could still spend.
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
    # If each check is decided 4 times out of 5, then of three checks at least one stays open every other time.
    still_open = sum(check.outcome is CheckOutcome.INCONCLUSIVE for check in checks)
    together = concluded(POWER ** (1 / still_open)) if still_open > 1 else checks
    return MetricChecks(checks=checks, more_runs=_more_runs(together) or _more_runs(checks))


def _levels(policy: Policy, gates: Sequence[Weighed]) -> dict[str, tuple[float, bool]]:
    """Each rule's share of the level of BLOCK, and whether it shows harm (Holm, weighted among the tested rules)."""
    weights = [item.rule.weight for item in gates]
    rejected = holm([item.found.p_harm for item in gates if item.found], weights, policy.alpha_block)
    total = sum(weights)
    return {
        item.rule.name: (level or policy.alpha_block * item.rule.weight / total, level > 0)
        for item, level in zip(gates, rejected, strict=True)
    }


def _alone(policy: Policy, item: Weighed) -> tuple[float, bool]:
    """The level of an advisory rule, which shares it with no other, and whether the rule shows harm at it."""
    return policy.alpha_block, item.found is not None and item.found.p_harm <= policy.alpha_block


def _as_judged(policy: Policy, rule: MetricRule, sides: Iterable[Sequence[Run]]) -> MetricRule:
    """The rule as these runs let it judge. A rule that needs many values decides only if each side has a run with that
    many; shorter runs take no part. And the limit for a whole run is no tighter than that for its steps."""
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
    """Runs per side that would decide every open metric; None if no number of runs would decide one of them."""
    needed = [check.more_runs for check in checks if check.outcome is CheckOutcome.INCONCLUSIVE]
    known = [runs for runs in needed if runs is not None]
    return max(known) if known and len(known) == len(needed) else None
