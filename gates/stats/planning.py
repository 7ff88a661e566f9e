"""What runs can show before they are made: the chance of PASS and BLOCK, and how many runs would decide."""

from __future__ import annotations

import math
from dataclasses import replace

import scipy

from gates.model.policy import Policy
from gates.stats.comparisons import Comparison, Design, Spread

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
