"""What runs can show before they are made: the chance of PASS and BLOCK, and how many runs would decide."""

from __future__ import annotations

import math

from scipy.special import nctdtr, ndtr, stdtrit

from gates.comparisons import Comparison
from gates.design import Design
from gates.priors import Spread

MAX_RUNS = 20
"""Runs per side beyond which more runs are no longer advised."""
POWER = 0.8
_POWER_QUANTILE = 0.8416212335729143  # standard normal quantile of POWER
_LARGEST_SHIFT = 30.0  # beyond it scipy's non-central t loses its digits, and every critical value is exceeded


def pass_probability(found: Comparison, design: Design, truth: float, alpha: float) -> float:
    """Chance that `design` shows non-inferiority when the true harm is `truth`, at the spread that was
    found."""
    se, df = design.error(found.spread), _df(found, found.cautious, design)
    if df <= 0:
        return 0.0
    return upper_tail((found.margin - truth) / se, critical(df, alpha, design), df)


def block_probability(found: Comparison, design: Design, truth: float, alpha: float) -> float:
    """Chance that `design` finds harm beyond the margin, significant at `alpha`, when the true harm is
    `truth`."""
    se, df = design.error(found.spread), _df(found, found.spread, design)
    if df <= 0:
        return 0.0
    significant = upper_tail(truth / se, critical(df, alpha, design), df)
    return min(significant, float(ndtr((truth - found.margin) / se)))


def runs_needed(found: Comparison, *, truth: float, alpha_pass: float, alpha_block: float, least: int) -> int | None:
    """Runs per side (at least `least`) that decide with 80 % chance if the true harm is `truth`; None above
    20."""
    for runs in range(max(1, least), MAX_RUNS + 1):
        design = found.design.grown(runs)
        if truth < found.margin:
            chance = pass_probability(found, design, truth, alpha_pass)
        else:
            chance = block_probability(found, design, truth, alpha_block)
        if chance >= POWER:
            return runs
    return None


def smallest_detectable(found: Comparison, alpha_block: float) -> float:
    """The smallest true harm that these runs would block with 80 % chance, in harm units.

    The shift that a non-central t needs, by the normal approximation of Abramowitz & Stegun 26.7.10: a figure for
    people, wanted for every metric of every verdict.
    """
    df = found.spread.df
    limit = critical(df, alpha_block, found.design)
    shift = limit * (1 - 1 / (4 * df)) + _POWER_QUANTILE * math.sqrt(1 + limit**2 / (2 * df))
    return max(shift * found.standard_error, found.margin + _POWER_QUANTILE * found.standard_error)


def critical(df: float, alpha: float, design: Design) -> float:
    """The t value that a difference must exceed."""
    return float(stdtrit(df, 1 - (alpha / 2 if design.two_sided else alpha)))


def upper_tail(shift: float, limit: float, df: float) -> float:
    """P(T > limit) for a non-central t with `df` degrees of freedom and non-centrality `shift`."""
    if shift > _LARGEST_SHIFT or math.isinf(limit):
        return 1.0 if shift > limit else 0.0
    return 1.0 - float(nctdtr(df, shift, limit))


def _df(found: Comparison, spread: Spread, design: Design) -> float:
    """The degrees of freedom of another design: what a spread rests on besides the differences (a prior, the sums of
    pairs) stays."""
    return design.df + spread.df - found.design.df
