"""How much runs are expected to differ, before their own spread is measured: what groups of unchanged runs tell.

After limma's fitFDist (Smyth, "Linear models and empirical Bayes methods", 2004).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import scipy

from canary_mlflow.gates.model.fields import number, one_of

LEAST_SPREAD = 1e-12
"""No spread between runs is smaller: rounding alone causes as much, and the square of a much smaller one is 0."""
SHIPPED_DF = 4.0
"""What a prior of the policy is worth: as much as three runs a side."""
MOST_DF = 10.0
"""What a learnt prior may be worth until it rests on MANY_GROUPS groups: of 10 groups, half are off by 35 %."""
MANY_GROUPS = 30
LEAST_DF = 2.0
"""Below it a fit says that the groups differ too much for one prior, and its spread is far from what was measured."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """The spread `sd` expected between equal runs, worth `df` degrees of freedom.

    `kind`: shipped (stated in the policy), calibrated (unchanged runs of one place), learnt (earlier runs, many groups
    of them or one long series).
    """

    sd: Annotated[float, number(LEAST_SPREAD)]
    df: Annotated[float, number(0, above=True)]
    kind: Annotated[str, one_of(dict.fromkeys(("calibrated", "learnt")), "kind")]


def fit_prior(variances: Sequence[float], dfs: Sequence[float]) -> tuple[float, float]:
    """The prior variance and its degrees of freedom (infinite if groups differ by chance alone), from the variances of
    groups of equal runs.

    Moments of the log variances (limma's fitFDist); needs at least two, all above zero.
    """
    half = np.asarray(dfs) / 2
    e = np.log(variances) - scipy.special.digamma(half) + np.log(half)
    excess = float(np.var(e, ddof=1) - np.mean(scipy.special.polygamma(1, half)))
    if excess <= 0:
        # All groups share one variance: the mean, weighted by degrees of freedom, estimates it best.
        return float(np.average(variances, weights=half)), math.inf
    prior_df = 2 * _inverse_trigamma(excess)
    return float(np.exp(np.mean(e) + scipy.special.digamma(prior_df / 2) - np.log(prior_df / 2))), prior_df


def learn_prior(variances: Sequence[float], dfs: Sequence[float]) -> Prior | None:
    """The prior from groups of unchanged runs: calibrated from one or two groups, learnt from more if they agree so
    well that the fit is worth LEAST_DF; None if no group has a spread."""
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
    """x with trigamma(x) = value > 0; to first order where x is far from 1."""
    if not 1e-6 < value < 1e7:
        return max(1 / value, 1 / math.sqrt(value))
    return float(scipy.optimize.brentq(lambda x: scipy.special.polygamma(1, x) - value, 1e-4, 1e7))
