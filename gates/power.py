"""The chance of BLOCK and PASS at a known spread, per true harm and number of runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gates.design import Design
from gates.planning import block_chance, enough_to_block, limits, pass_chance
from gates.policy import Policy
from gates.rules import MetricRule, Role, Scale, Worse


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
    margin: float,
    sd: float,
    sizes: Sequence[tuple[int, int]],
    effects: Sequence[float],
    *,
    prior_df: float | None = None,
    role: Role = Role.GATE,
    two_sided: bool = False,
) -> list[Power]:
    """The chances at spread `sd` and `margin` (same scale), known as a prior of `prior_df` degrees of freedom (None: as
    many as the policy's), and BLOCK at the level that Holm leaves the worst of all gate metrics. An ADVISORY metric
    never blocks; one on IGNORE does not pass either."""
    designs = [Design(baseline_runs=k, candidate_runs=m, paired=False, two_sided=two_sided) for k, m in sizes]
    known = replace(policy, prior_df=policy.prior_df if prior_df is None else prior_df)
    return [each for design in designs for each in _powers(known, margin, sd, design, effects, role)]


def _powers(
    policy: Policy, margin: float, sd: float, design: Design, effects: Sequence[float], role: Role
) -> Iterator[Power]:
    family = max(1, sum(rule.role is Role.GATE for rule in policy.rules))
    enough = enough_to_block(policy, design)
    within = limits(
        design,
        margin=margin,
        sd=sd,
        prior_df=policy.prior_df,
        alpha_pass=policy.alpha_pass,
        alpha_harm=policy.alpha_block / family,
        alpha_order=policy.alpha_block,
    )
    for effect in effects:
        truth = effect * margin
        yield Power(
            baseline_runs=design.baseline_runs,
            candidate_runs=design.candidate_runs,
            effect=effect,
            block=block_chance(within, truth) if enough and role is Role.GATE else 0.0,
            passed=pass_chance(within, truth) if role is not Role.IGNORE else 0.0,
        )


def harm_margin(rule: MetricRule) -> float:
    """The rule's margin in harm units."""
    if rule.scale is Scale.IDENTITY:
        return rule.margin
    return -math.log1p(-rule.margin) if rule.worse is Worse.LOWER else math.log1p(rule.margin)
