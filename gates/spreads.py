"""How much runs differ from each other: the measured spread, moderated by what was known before.

After limma's moderated t (Smyth, "Linear models and empirical Bayes methods", 2004).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, fdtri

AGREEMENT = 0.01
"""How seldom noise would let runs agree so well, for them to be said to have something in common: a schedule of
pauses, or what a seed does."""
PRIOR_SHARE, PRIOR_MOST = 1 / 4, 1.5
"""What a prior may be worth for BLOCK: a share of the runs' own degrees of freedom, and no more than 5 against 3 runs
give it: with all of it, more than 1 % of unchanged sides are blocked whose metrics are all twice as noisy as their
priors (docs/gate.md)."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Variance of one run's number, the degrees of freedom it rests on, and those that the prior still gives.

    `prior_df` is 0 when the data contradicted the prior and it was dropped.
    """

    variance: float
    df: float
    prior_df: float

    def at_least(self, variance: float) -> Spread:
        """The same, but not below this variance."""
        return replace(self, variance=max(self.variance, variance))


@dataclass(frozen=True, kw_only=True)
class Squares:
    """A sum of squares of one run's number about its mean, and the degrees of freedom it rests on."""

    total: float
    df: int

    @property
    def variance(self) -> float:
        """The variance it estimates; needs a degree of freedom."""
        return self.total / self.df


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What numbers wobble by inside their runs: the variance below which a spread between runs is not believed.

    `recurring`: every run wobbles so more than once.
    """

    variance: float = 0.0
    recurring: bool = False

    def beneath(self, squares: Squares) -> float:
        """The variance; 0 where it recurs and runs agree far better (chi-square, 1 %) than numbers that wobble so much
        by themselves could: it then is no noise but a schedule, such as an evaluation every 100 steps.

        Taken for noise, it left every unchanged side open (tests/gates/test_stalls.py).
        """
        if not (self.recurring and self.variance > 0 and squares.df):
            return self.variance
        return 0.0 if chdtr(squares.df, squares.total / self.variance) < AGREEMENT else self.variance


def squares_of(groups: Sequence[NDArray[np.float64]], per_run: float = 1.0) -> Squares:
    """What the values of each group differ by; `per_run`: their variance, in variances of a run.

    fsum makes it independent of the order of the runs, bit for bit.
    """
    with np.errstate(over="ignore"):  # a spread that no float holds is infinite, and too noisy to decide by
        total = math.fsum(math.fsum((x - math.fsum(group) / len(group)) ** 2 for x in group) for group in groups)
    return Squares(total=total / per_run, df=sum(len(group) - 1 for group in groups))


def moderate(squares: Squares, prior_variance: float, prior_df: float, most: float = math.inf) -> Spread:
    """Combine what runs differ by with a prior variance worth `prior_df` degrees of freedom, but no more than `most`.

    A prior that the data contradict (F test at 1 %) is dropped: on runs twelve times noisier than their prior, keeping
    it blocked unchanged code six times as often.
    """
    df = squares.df
    if df >= 2 and squares.variance / prior_variance > float(fdtri(df, prior_df, 0.99)):
        return Spread(variance=squares.variance, df=df, prior_df=0.0)
    weight = min(prior_df, most)
    total = weight + df
    return Spread(variance=(weight * prior_variance + squares.total) / total, df=total, prior_df=weight)


def pool(squares: Squares, others: Squares) -> Squares:
    """What runs differ by, with what others do where both tell of one variance.

    Where an F test at 5 % to either side says that they do not (pairs from unlike hosts), the others have no part. Of
    equal runs that loses one in ten; what passes at a margin stays near its level (tests/gates/test_matching.py).
    """
    if not (squares.total > 0 and others.total > 0):
        return squares
    ratio = squares.variance / others.variance
    low, high = (float(fdtri(squares.df, others.df, level)) for level in (0.05, 0.95))
    return Squares(total=squares.total + others.total, df=squares.df + others.df) if low <= ratio <= high else squares


def decisive(squares: Squares, known: float, prior_df: float, single: bool) -> Spread:
    """What BLOCK rests on: of the prior's variance `known` no more than PRIOR_SHARE and PRIOR_MOST; all of it where a
    side is `single`, whose one run warns, but never blocks."""
    return moderate(squares, known, prior_df, math.inf if single else min(PRIOR_SHARE * squares.df, PRIOR_MOST))


def cautious(squares: Squares, known: float, prior_df: float) -> Spread:
    """What PASS rests on: that of the runs alone, where it is above what is known."""
    if squares.df > 0 and squares.variance > known:
        return Spread(variance=squares.variance, df=squares.df, prior_df=0.0)
    return moderate(squares, known, prior_df)
