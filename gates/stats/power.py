"""What runs can show before they are made: the chance of PASS and BLOCK, and how many runs would decide; from the
spread that runs had, or for each number of runs at a known one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy

from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Values
from canary_mlflow.gates.model.rules import MetricRule, Prior, Role, Worse
from canary_mlflow.gates.stats.comparisons import Comparison, Design, Spread, compare

LEAST_TO_BLOCK = 2
"""A single number, even as the mean of five runs of a seed, tells nothing about the spread."""
MAX_RUNS = 20
"""Runs per side beyond which more runs are no longer advised."""
POWER = 0.8  # the usual one: a plan decides 4 times out of 5
_LARGEST_SHIFT = 30.0  # beyond it scipy's non-central t loses its digits, and every critical value is exceeded


def pass_probability(found: Comparison, design: Design, truth: float, alpha: float) -> float:
    """Chance that `design` shows non-inferiority when the true harm is `truth`, at the spread that was found; if both
    directions are harm, that it shows it in both."""
    other = replace(found, design=design)
    se, df = other.error(found.spread), _df(found, found.cautious, design)
    if df <= 0:
        return 0.0
    limit = float(scipy.special.stdtrit(df, 1 - alpha / design.tails))
    chance = upper_tail((found.margin - truth) / se, limit, df)
    if design.two_sided:
        chance += upper_tail((found.margin + truth) / se, limit, df) - 1
    return max(0.0, chance)


def block_probability(found: Comparison, design: Design, truth: float, alpha: float) -> float:
    """Chance that `design` finds harm beyond the margin, significant at `alpha`, when the true harm is `truth`."""
    df = _df(found, found.spread, design)
    if df <= 0:
        return 0.0
    other = replace(found, design=design, spread=replace(found.spread, df=df))
    return float(scipy.special.ndtr((truth - min(other.least_harms(alpha))) / other.error(found.spread)))


def runs_needed(
    found: Comparison, *, truth: float, alpha_pass: float, alpha_block: float, least: int, power: float = POWER
) -> int | None:
    """Runs per side (at least `least`) that decide with probability `power` if the true harm is `truth`; None above
    20."""
    for runs in range(max(1, least), MAX_RUNS + 1):
        design = found.design.grown(runs)
        if truth < found.margin:
            chance = pass_probability(found, design, truth, alpha_pass)
        else:
            chance = block_probability(found, design, truth, alpha_block)
        if chance >= power:
            return runs
    return None


def enough_to_block(policy: Policy, design: Design) -> bool:
    """Whether both sides have the numbers, and the baseline the runs, that statistics need before they may block."""
    enough = min(design.baseline_runs, design.candidate_runs) >= LEAST_TO_BLOCK
    return enough and design.averaged * design.baseline_runs >= policy.min_baseline_runs


def smallest_detectable(found: Comparison, alpha_block: float) -> float:
    """The smallest true harm that these runs would block with 80 % probability, in harm units, if there are enough of
    them to block and the spread is what BLOCK takes it for."""
    return min(found.least_harms(alpha_block)) + float(scipy.special.ndtri(POWER)) * found.error(found.spread)


def upper_tail(shift: float, limit: float, df: float) -> float:
    """P(T > limit) for a non-central t with `df` degrees of freedom and non-centrality `shift`."""
    if shift > _LARGEST_SHIFT or math.isinf(limit):
        return 1.0 if shift > limit else 0.0
    return 1.0 - float(scipy.special.nctdtr(df, shift, limit))


def _df(found: Comparison, spread: Spread, design: Design) -> float:
    """The degrees of freedom of a spread in another design: those that do not come from the differences (a prior, the
    sums of pairs) stay."""
    return design.df + spread.df - found.design.df


POINTS = 1000
"""Number of sets of runs that represent all possible ones; chances from them are right to about half a percent."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Chances:
    """What one rule says with a given number of runs: `blocks` tells whether it may BLOCK with so few. For each of
    POINTS sets of runs, the limits that the difference of two means must exceed to BLOCK, `above` or `below` zero, and
    those that it must stay between to PASS, `lowest` and `highest`. `error`: the difference's true standard error.

    The limits depend on how runs scatter around the means of their sides; for normal runs, the difference is
    independent of that. Harms are in harm units.
    """

    rule: MetricRule
    baseline_runs: int
    candidate_runs: int
    blocks: bool
    error: float
    above: Values
    below: Values
    lowest: Values
    highest: Values

    def block(self, truth: float) -> float:
        """Chance that the judge finds harm beyond the margin and blocks, when the true harm is `truth`."""
        ndtr = scipy.special.ndtr
        upwards, downwards = ndtr((truth - self.above) / self.error), ndtr((-truth - self.below) / self.error)
        return float(np.mean(upwards + downwards)) if self.blocks else 0.0

    def passed(self, truth: float) -> float:
        """Chance that the judge rules out harm as large as the margin in every direction that counts, when the true
        harm is `truth`. A rule on IGNORE never does."""
        ndtr = scipy.special.ndtr
        inside = ndtr((self.highest - truth) / self.error) - ndtr((self.lowest - truth) / self.error)
        return float(np.mean(np.maximum(inside, 0.0))) if self.rule.role is not Role.IGNORE else 0.0

    @cached_property
    def smallest(self) -> float | None:
        """The smallest true harm that is blocked with probability POWER; None if so few runs never block."""
        most = float(self.above.max()) + 10 * self.error
        return float(scipy.optimize.brentq(lambda harm: self.block(harm) - POWER, 0.0, most)) if self.blocks else None

    @property
    def unchanged(self) -> float:
        """The chance that a harmless candidate gets past the rule: a GATE rule must PASS, a GUARD must not BLOCK."""
        return 1.0 - self.block(0.0) if self.rule.role is Role.GUARD else self.passed(0.0)


def chances(policy: Policy, rule: MetricRule, prior: Prior, size: tuple[int, int]) -> Chances:
    """What a rule says of so many (baseline, candidate) runs if they spread as `prior` says, on the rule's scale, with
    BLOCK at the rule's share of the level: by the judge's own comparison."""
    both, margin, rows = rule.worse is Worse.BOTH, rule.harm_margin, []
    design = Design(baseline_runs=size[0], candidate_runs=size[1], paired=False, two_sided=both)
    for point in prior.sd * _normal_points(POINTS, sum(size)):
        left, right = (side - side.mean() for side in np.split(point, [size[0]]))
        found = compare(left, right, margin=margin, prior=prior, two_sided=both)
        by_means, by_median = found.least_harms(level(policy, rule))
        above, below = (min(by_means, by_median - sign * found.typical) for sign in (1, -1))
        highest = found.interval(policy.alpha_pass)[0] + margin  # below it by the interval's half width
        rows.append((above, below if both else math.inf, -highest if both else -math.inf, highest))
    above, below, lowest, highest = np.array(rows).T
    return Chances(
        rule=rule,
        baseline_runs=size[0],
        candidate_runs=size[1],
        blocks=rule.blocks and enough_to_block(policy, design),
        error=prior.sd / math.sqrt(design.information),
        above=above,
        below=below,
        lowest=lowest,
        highest=highest,
    )


def _normal_points(count: int, dimensions: int) -> Values:
    """Normally distributed points, evenly spread and without chance: Roberts' R sequence."""
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (dimensions + 1))
    steps = root ** -np.arange(1.0, dimensions + 1)
    return np.asarray(scipy.special.ndtri((0.5 + np.outer(np.arange(1, count + 1), steps)) % 1.0))


def level(policy: Policy, rule: MetricRule) -> float:
    """The rule's share of the level of BLOCK when all deciding rules are tested."""
    others = sum(other.weight for other in policy.rules if other.blocks and other.name != rule.name)
    return policy.alpha_block * policy.early_share(0, 0) * rule.weight / (rule.weight + others)
