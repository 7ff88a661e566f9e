"""What runs can show before they are made: the chance of PASS and BLOCK, and how many runs would decide."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import nctdtr, ndtr, ndtri, stdtrit

from gates.model.policy import Policy
from gates.model.priors import Prior
from gates.stats.comparisons import BY_MEANS, BY_MEDIAN, Comparison, Design, Spread, Values, compare

MAX_RUNS = 20
"""Runs per side beyond which more runs are no longer advised."""
POWER = 0.8
POINTS = 1000
"""Number of sets of runs that represent all possible ones; chances from them are right to about half a percent."""
_POWER_QUANTILE = 0.8416212335729143  # standard normal quantile of POWER
_LARGEST_SHIFT = 30.0  # beyond it scipy's non-central t loses its digits, and every critical value is exceeded


def pass_probability(found: Comparison, design: Design, truth: float, alpha: float) -> float:
    """Chance that `design` shows non-inferiority when the true harm is `truth`, at the spread that was found; if both
    directions are harm, that it shows it in both."""
    other = replace(found, design=design)
    se, df = other.error(found.spread), _df(found, found.cautious, design)
    if df <= 0:
        return 0.0
    limit = float(stdtrit(df, 1 - (alpha / 2 if design.two_sided else alpha)))
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
    return float(ndtr((truth - other.least_harm(alpha)) / other.error(found.spread)))


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


def limits(design: Design, *, margin: float, prior: Prior, alpha_pass: float, alpha_block: float) -> Limits:
    """The judge's own limits for runs with the spread that `prior` states; `design` must be without pairs."""
    rows = []
    for point in prior.sd * _normal_points(POINTS, design.baseline_runs + design.candidate_runs):
        left, right = (side - side.mean() for side in np.split(point, [design.baseline_runs]))
        found = compare(left, right, margin=margin, prior=prior, two_sided=design.two_sided)
        tail = alpha_block / 2 if design.two_sided else alpha_block
        by_means = max(margin, float(stdtrit(found.spread.df, 1 - BY_MEANS * tail)) * found.error(found.spread))
        by_median = max(margin, float(ndtri(1 - BY_MEDIAN * tail)) * found.doubted_error)
        above, below = (min(by_means, by_median - sign * found.typical) for sign in (1, -1))
        highest = found.interval(alpha_pass)[0] + margin  # below it by the interval's half width
        rows.append(
            (above, below if design.two_sided else math.inf, -highest if design.two_sided else -math.inf, highest)
        )
    columns = dict(zip(("above", "below", "lowest", "highest"), np.array(rows).T, strict=True))
    return Limits(error=prior.sd / math.sqrt(design.information), **columns)


def block_chance(found: Limits, truth: float) -> float:
    """Chance that the judge finds harm beyond the margin and blocks, when the true harm is `truth`."""
    upwards, downwards = ndtr((truth - found.above) / found.error), ndtr((-truth - found.below) / found.error)
    return float(np.mean(upwards + downwards))


def pass_chance(found: Limits, truth: float) -> float:
    """Chance that the judge rules out harm as large as the margin in every direction that counts, when the true harm is
    `truth`."""
    inside = ndtr((found.highest - truth) / found.error) - ndtr((found.lowest - truth) / found.error)
    return float(np.mean(np.maximum(inside, 0.0)))


def _normal_points(count: int, dimensions: int) -> Values:
    """Normally distributed points, evenly spread and without chance: Roberts' R sequence."""
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (dimensions + 1))
    steps = root ** -np.arange(1.0, dimensions + 1)
    return np.asarray(ndtri((0.5 + np.outer(np.arange(1, count + 1), steps)) % 1.0))


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
    """Whether both sides have the runs that the policy requires before statistics may block, and at least two numbers:
    a single one, even as the mean of five runs of a seed, tells nothing about the spread."""
    if min(design.baseline_runs, design.candidate_runs) < 2:
        return False
    baseline_runs = design.averaged * design.baseline_runs
    return design.candidate_runs >= policy.min_candidate_runs and baseline_runs >= policy.min_baseline_runs


def smallest_detectable(found: Comparison, alpha_block: float) -> float:
    """The smallest true harm that these runs would block with 80 % probability, in harm units, if there are enough of
    them to block and the spread is what BLOCK takes it for."""
    return found.least_harm(alpha_block) + _POWER_QUANTILE * found.error(found.spread)


def upper_tail(shift: float, limit: float, df: float) -> float:
    """P(T > limit) for a non-central t with `df` degrees of freedom and non-centrality `shift`."""
    if shift > _LARGEST_SHIFT or math.isinf(limit):
        return 1.0 if shift > limit else 0.0
    return 1.0 - float(nctdtr(df, shift, limit))


def _df(found: Comparison, spread: Spread, design: Design) -> float:
    """The degrees of freedom of a spread in another design: those that do not come from the differences (a prior, the
    sums of pairs) stay."""
    return design.df + spread.df - found.design.df
