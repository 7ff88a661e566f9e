"""The chance of BLOCK and PASS at a known spread, per true harm and number of runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gates.model.policy import Policy
from gates.model.priors import Prior
from gates.model.rules import MetricRule, Role, Scale, Worse
from gates.stats.design import Design
from gates.stats.planning import block_chance, enough_to_block, limits, pass_chance


@dataclass(frozen=True, kw_only=True)
class Power:
    """The chance that one metric alone ends in BLOCK or PASS when the true harm is `effect` margins."""

    baseline_runs: int
    candidate_runs: int
    effect: float
    block: float
    passed: float


def power(
    policy: Policy,
    rule: MetricRule,
    prior: Prior,
    sizes: Sequence[tuple[int, int]],
    effects: Sequence[float],
) -> list[Power]:
    """The chances of a rule of the policy where runs spread as `prior` says, on its scale, BLOCK at the rule's share of
    the level. An ADVISORY rule never blocks; one on IGNORE does not pass either."""
    two_sided = rule.worse is Worse.BOTH
    designs = [Design(baseline_runs=k, candidate_runs=m, paired=False, two_sided=two_sided) for k, m in sizes]
    return [each for design in designs for each in _powers(policy, rule, prior, design, effects)]


def _powers(
    policy: Policy, rule: MetricRule, prior: Prior, design: Design, effects: Sequence[float]
) -> Iterator[Power]:
    margin = harm_margin(rule)
    within = limits(design, margin=margin, prior=prior, alpha_pass=policy.alpha_pass, alpha_block=level(policy, rule))
    decides = rule.role in (Role.GATE, Role.GUARD) and enough_to_block(policy, design)
    for effect in effects:
        truth = effect * margin
        yield Power(
            baseline_runs=design.baseline_runs,
            candidate_runs=design.candidate_runs,
            effect=effect,
            block=block_chance(within, truth) if decides else 0.0,
            passed=pass_chance(within, truth) if rule.role is not Role.IGNORE else 0.0,
        )


def level(policy: Policy, rule: MetricRule) -> float:
    """The rule's share of the level of BLOCK, where all that decide are tested."""
    others = sum(
        other.weight for other in policy.rules if other.role in (Role.GATE, Role.GUARD) and other.name != rule.name
    )
    return policy.alpha_block * rule.weight / (rule.weight + others)


def harm_margin(rule: MetricRule) -> float:
    """The rule's margin in harm units."""
    if rule.scale is Scale.IDENTITY:
        return rule.margin
    return -math.log1p(-rule.margin) if rule.worse is Worse.LOWER else math.log1p(rule.margin)
