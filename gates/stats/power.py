"""The chance of BLOCK and PASS at a known spread, per true harm and number of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri, stdtrit

from gates.model.policy import Policy
from gates.model.priors import Prior
from gates.model.rules import MetricRule, Role, Scale, Worse
from gates.stats.comparisons import BY_MEANS, BY_MEDIAN, Design, Values, compare
from gates.stats.planning import POWER, enough_to_block

POINTS = 1000
"""Number of sets of runs that represent all possible ones; chances from them are right to about half a percent."""


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Limits:
    """For each of POINTS sets of runs: the limits that the difference of two means must exceed to BLOCK, `above` or
    `below` zero, and those that it must stay between to PASS, `lowest` and `highest`. `error`: the difference's true
    standard error.

    The limits depend on how runs scatter around the means of their sides; for normal runs, the difference is
    independent of that.
    """

    error: float
    above: Values
    below: Values
    lowest: Values
    highest: Values

    def block(self, truth: float) -> float:
        """Chance that the judge finds harm beyond the margin and blocks, when the true harm is `truth`."""
        upwards, downwards = ndtr((truth - self.above) / self.error), ndtr((-truth - self.below) / self.error)
        return float(np.mean(upwards + downwards))

    def passed(self, truth: float) -> float:
        """Chance that the judge rules out harm as large as the margin in every direction that counts, when the true
        harm is `truth`."""
        inside = ndtr((self.highest - truth) / self.error) - ndtr((self.lowest - truth) / self.error)
        return float(np.mean(np.maximum(inside, 0.0)))

    def smallest(self) -> float:
        """The true harm that is blocked with probability POWER."""
        most = float(self.above.max()) + 10 * self.error
        return float(brentq(lambda harm: self.block(harm) - POWER, 0.0, most))


def reach(policy: Policy, rule: MetricRule, prior: Prior, sizes: Sequence[tuple[int, int]]) -> list[Reach]:
    """What a deciding rule can tell if runs spread as `prior` says, for each (baseline, candidate) size."""
    found = []
    for design in _designs(rule, sizes):
        within, blocks = _limits(policy, rule, prior, design), enough_to_block(policy, design)
        unchanged = within.passed(0.0)
        if rule.role is Role.GUARD:
            unchanged = 1.0 - within.block(0.0) if blocks else 1.0
        found.append(
            Reach(
                rule=rule,
                baseline_runs=design.baseline_runs,
                candidate_runs=design.candidate_runs,
                smallest=within.smallest() if blocks else None,
                unchanged=unchanged,
            )
        )
    return found


def power(
    policy: Policy,
    rule: MetricRule,
    prior: Prior,
    sizes: Sequence[tuple[int, int]],
    effects: Sequence[float],
) -> list[Power]:
    """The chances of one rule if runs spread as `prior` says, on the rule's scale, with BLOCK at the rule's share of
    the level. An ADVISORY rule never blocks; one on IGNORE does not pass either."""
    found = []
    for design in _designs(rule, sizes):
        within = _limits(policy, rule, prior, design)
        decides = rule.role in (Role.GATE, Role.GUARD) and enough_to_block(policy, design)
        found += [
            Power(
                baseline_runs=design.baseline_runs,
                candidate_runs=design.candidate_runs,
                effect=effect,
                block=within.block(effect * rule.harm_margin) if decides else 0.0,
                passed=within.passed(effect * rule.harm_margin) if rule.role is not Role.IGNORE else 0.0,
            )
            for effect in effects
        ]
    return found


def _designs(rule: MetricRule, sizes: Sequence[tuple[int, int]]) -> list[Design]:
    two_sided = rule.worse is Worse.BOTH
    return [Design(baseline_runs=k, candidate_runs=m, paired=False, two_sided=two_sided) for k, m in sizes]


def _limits(policy: Policy, rule: MetricRule, prior: Prior, design: Design) -> Limits:
    """The judge's own limits for runs with the spread that `prior` states; `design` must be without pairs."""
    margin, both, rows = rule.harm_margin, design.two_sided, []
    tail = level(policy, rule) / 2 if both else level(policy, rule)
    for point in prior.sd * _normal_points(POINTS, design.baseline_runs + design.candidate_runs):
        left, right = (side - side.mean() for side in np.split(point, [design.baseline_runs]))
        found = compare(left, right, margin=margin, prior=prior, two_sided=both)
        by_means = max(margin, float(stdtrit(found.spread.df, 1 - BY_MEANS * tail)) * found.error(found.spread))
        by_median = max(margin, float(ndtri(1 - BY_MEDIAN * tail)) * found.doubted_error)
        above, below = (min(by_means, by_median - sign * found.typical) for sign in (1, -1))
        highest = found.interval(policy.alpha_pass)[0] + margin  # below it by the interval's half width
        rows.append((above, below if both else math.inf, -highest if both else -math.inf, highest))
    columns = dict(zip(("above", "below", "lowest", "highest"), np.array(rows).T, strict=True))
    return Limits(error=prior.sd / math.sqrt(design.information), **columns)


def _normal_points(count: int, dimensions: int) -> Values:
    """Normally distributed points, evenly spread and without chance: Roberts' R sequence."""
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (dimensions + 1))
    steps = root ** -np.arange(1.0, dimensions + 1)
    return np.asarray(ndtri((0.5 + np.outer(np.arange(1, count + 1), steps)) % 1.0))


def level(policy: Policy, rule: MetricRule) -> float:
    """The rule's share of the level of BLOCK when all deciding rules are tested."""
    others = sum(
        other.weight for other in policy.rules if other.role in (Role.GATE, Role.GUARD) and other.name != rule.name
    )
    return policy.alpha_block * rule.weight / (rule.weight + others)


def as_change(rule: MetricRule, harm: float) -> float:
    """A harm as a signed change of the metric: a fraction on the log scale, else in the metric's unit."""
    sign = -1 if rule.worse is Worse.LOWER else 1
    return sign * harm if rule.scale is Scale.IDENTITY else math.expm1(sign * harm)
