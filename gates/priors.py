"""How much runs differ from each other: what is known before measuring, and the measured spread moderated by it.

After limma's moderated t (Smyth, "Linear models and empirical Bayes methods", 2004).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, digamma, fdtri, polygamma

MOST_DF = 10.0
"""What a learnt prior may be worth until it rests on MANY_GROUPS groups: of 10 groups, half are off by 35 %."""
MANY_GROUPS = 30
LEAST_DF = 2.0
"""Below it a fit says that the groups differ too much for one prior, and its spread is far from what was measured."""
AGREEMENT = 0.01
"""How seldom noise would let runs agree so well, for them to be said to have something in common: a schedule of
pauses, or what a seed does."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """The spread `sd` expected between equal runs, worth `df` degrees of freedom.

    `kind`: shipped (stated in the policy), calibrated (unchanged runs of one place), learnt (many groups of them).
    """

    sd: float
    df: float
    kind: str


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Variance of one run's number, the degrees of freedom it rests on, and those that the prior still gives.

    `prior_df` is 0 when the data contradicted the prior and it was dropped.
    """

    variance: float
    df: float
    prior_df: float


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


def fit_prior(variances: Sequence[float], dfs: Sequence[float]) -> tuple[float, float]:
    """The prior variance and its degrees of freedom (infinite where groups differ by chance alone) behind the
    variances of groups of equal runs.

    Moments of the log variances (limma's fitFDist); needs at least two variances above zero.
    """
    pairs = [(variance, df) for variance, df in zip(variances, dfs, strict=True) if variance > 0 and df > 0]
    if len(pairs) < 2:
        raise ValueError(f"{len(pairs)} groups with a spread; expected at least 2")
    z, half = np.log([variance for variance, _ in pairs]), np.array([df / 2 for _, df in pairs])
    e = z - digamma(half) + np.log(half)
    excess = float(np.var(e, ddof=1) - np.mean(polygamma(1, half)))
    if excess <= 0:
        # All groups share one variance: the mean by degrees of freedom estimates it best.
        return float(np.average([variance for variance, _ in pairs], weights=half)), math.inf
    prior_df = 2 * _inverse_trigamma(excess)
    return float(np.exp(np.mean(e) + digamma(prior_df / 2) - np.log(prior_df / 2))), prior_df


def learn_prior(variances: Sequence[float], dfs: Sequence[float]) -> Prior | None:
    """What groups of unchanged runs say: calibrated from one or two, learnt from more, where these agree so far that
    the fit is worth LEAST_DF; None where none has a spread."""
    pairs = [(variance, df) for variance, df in zip(variances, dfs, strict=True) if variance > 0 and df > 0]
    total = sum(df for _, df in pairs)
    if not pairs:
        return None
    variance, df = fit_prior(*zip(*pairs, strict=True)) if len(pairs) >= 3 else (math.nan, 0.0)
    if df < LEAST_DF:
        pooled = sum(variance * df for variance, df in pairs) / total
        return Prior(sd=math.sqrt(pooled), df=min(total, MOST_DF), kind="calibrated")
    if len(pairs) < MANY_GROUPS:
        df = min(df, MOST_DF)
    return Prior(sd=math.sqrt(variance), df=min(df, total), kind="learnt")


def _inverse_trigamma(value: float) -> float:
    """x with trigamma(x) = value > 0, by Newton's method on 1 / trigamma, which is convex (Smyth 2004, appendix)."""
    if value > 1e7:
        return 1 / math.sqrt(value)
    if value < 1e-6:
        return 1 / value
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if -step / x < 1e-8:
            break
    return x
