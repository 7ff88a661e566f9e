"""The chance of BLOCK and PASS at a known spread, per true harm and number of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.optimize import brentq

from gates.model.policy import Policy
from gates.model.priors import Prior
from gates.model.rules import MetricRule, Role, Scale, Worse
from gates.stats.comparisons import Design
from gates.stats.planning import POWER, Limits, block_chance, enough_to_block, limits, pass_chance


@dataclass(frozen=True, kw_only=True)
class Power:
    """The chance that one metric alone ends in BLOCK or PASS when the true harm is `effect` margins."""

    baseline_runs: int
    candidate_runs: int
    effect: float
    block: float
    passed: float


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What one rule can tell with a given number of runs. `smallest`: the smallest true harm, in harm units, that it
    blocks with probability POWER; None if so few runs never block. `unchanged`: the chance that a harmless candidate
    gets past it: a GATE rule must PASS, a GUARD must not BLOCK."""

    rule: MetricRule
    baseline_runs: int
    candidate_runs: int
    smallest: float | None
    unchanged: float


def reach(policy: Policy, rule: MetricRule, prior: Prior, sizes: Sequence[tuple[int, int]]) -> list[Reach]:
    """What a deciding rule can tell if runs spread as `prior` says, for each (baseline, candidate) size."""
    found = []
    for design in _designs(rule, sizes):
        within, blocks = _limits(policy, rule, prior, design), enough_to_block(policy, design)
        unchanged = pass_chance(within, 0.0)
        if rule.role is Role.GUARD:
            unchanged = 1.0 - block_chance(within, 0.0) if blocks else 1.0
        found.append(
            Reach(
                rule=rule,
                baseline_runs=design.baseline_runs,
                candidate_runs=design.candidate_runs,
                smallest=_smallest(within) if blocks else None,
                unchanged=unchanged,
            )
        )
    return found


def _smallest(within: Limits) -> float:
    """The true harm that is blocked with probability POWER."""
    most = float(within.above.max()) + 10 * within.error
    return float(brentq(lambda harm: block_chance(within, harm) - POWER, 0.0, most))


def power(
    policy: Policy,
    rule: MetricRule,
    prior: Prior,
    sizes: Sequence[tuple[int, int]],
    effects: Sequence[float],
) -> list[Power]:
    """The chances of one rule if runs spread as `prior` says, on the rule's scale, with BLOCK at the rule's share of
    the level. An ADVISORY rule never blocks; one on IGNORE does not pass either."""
    found, margin = [], harm_margin(rule)
    for design in _designs(rule, sizes):
        within = _limits(policy, rule, prior, design)
        decides = rule.role in (Role.GATE, Role.GUARD) and enough_to_block(policy, design)
        found += [
            Power(
                baseline_runs=design.baseline_runs,
                candidate_runs=design.candidate_runs,
                effect=effect,
                block=block_chance(within, effect * margin) if decides else 0.0,
                passed=pass_chance(within, effect * margin) if rule.role is not Role.IGNORE else 0.0,
            )
            for effect in effects
        ]
    return found


def _designs(rule: MetricRule, sizes: Sequence[tuple[int, int]]) -> list[Design]:
    two_sided = rule.worse is Worse.BOTH
    return [Design(baseline_runs=k, candidate_runs=m, paired=False, two_sided=two_sided) for k, m in sizes]


def _limits(policy: Policy, rule: MetricRule, prior: Prior, design: Design) -> Limits:
    share = level(policy, rule)
    return limits(design, margin=harm_margin(rule), prior=prior, alpha_pass=policy.alpha_pass, alpha_block=share)


def level(policy: Policy, rule: MetricRule) -> float:
    """The rule's share of the level of BLOCK when all deciding rules are tested."""
    others = sum(
        other.weight for other in policy.rules if other.role in (Role.GATE, Role.GUARD) and other.name != rule.name
    )
    return policy.alpha_block * rule.weight / (rule.weight + others)


def harm_margin(rule: MetricRule) -> float:
    """The rule's margin in harm units."""
    if rule.scale is Scale.IDENTITY:
        return rule.margin
    return -math.log1p(-rule.margin) if rule.worse is Worse.LOWER else math.log1p(rule.margin)


def as_change(rule: MetricRule, harm: float) -> float:
    """A harm as a signed change of the metric: a fraction on the log scale, else in the metric's unit."""
    sign = -1 if rule.worse is Worse.LOWER else 1
    return sign * harm if rule.scale is Scale.IDENTITY else math.expm1(sign * harm)
