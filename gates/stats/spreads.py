"""How much runs differ from each other: the measured spread, moderated by what was known before.

After limma's moderated t (Smyth, "Linear models and empirical Bayes methods", 2004).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gates.model.priors import Prior

TOLD = 2.0
"""Up to this multiple of its spread, a prior counts in full: policies are measured at twice their priors."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Variance of one run's number, and the degrees of freedom it rests on, `prior_df` of them from the prior."""

    variance: float
    df: float
    prior_df: float


@dataclass(frozen=True, kw_only=True)
class Squares:
    """A sum of squares of runs' numbers about their means, and the degrees of freedom it rests on."""

    total: float
    df: int


def squares_of(groups: Sequence[NDArray[np.float64]], per_run: float = 1.0) -> Squares:
    """The sum of squares within each group. `per_run`: the values' variance, in units of a run's variance.

    fsum makes it independent of the order of the runs, bit for bit.
    """
    with np.errstate(over="ignore"):  # a spread too large for a float is infinite, and then nothing is shown
        total = math.fsum(math.fsum((x - math.fsum(group) / len(group)) ** 2 for x in group) for group in groups)
    return Squares(total=total / per_run, df=sum(len(group) - 1 for group in groups))


def moderate(squares: Squares, prior: Prior) -> Spread:
    """The measured spread combined with the prior, weighted by degrees of freedom. The further runs exceed TOLD times
    the prior's spread, the less the prior is worth, down to nothing."""
    weight = prior.df
    if squares.df and squares.total > 0:
        told = min(1.0, TOLD * prior.sd / math.sqrt(squares.total / squares.df))
        weight *= told * told
    df = weight + squares.df
    return Spread(variance=(weight * prior.sd * prior.sd + squares.total) / df, df=df, prior_df=weight)


def cautious(squares: Squares, prior: Prior) -> Spread:
    """The same, but the runs' own spread if it exceeds the prior's. PASS rests on this one.

    With a prior smaller than the truth, more than the permitted 5 % would pass at the margin
    (tests/gates/test_comparisons.py).
    """
    if squares.df > 0 and squares.total > squares.df * prior.sd * prior.sd:
        return Spread(variance=squares.total / squares.df, df=squares.df, prior_df=0.0)
    return moderate(squares, prior)
