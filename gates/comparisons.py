"""The run-level test: moderated t, unpaired or paired by seed, with Holm's step-down and the runs that
would decide.

Everything here is in harm units: larger is worse, on the scale (log or identity) of the rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtr, stdtrit

from gates.priors import Spread, moderate

MAX_RUNS = 20
"""Runs per side beyond which more runs are no longer advised."""
POWER = 0.8
_POWER_QUANTILE = 0.8416212335729143  # standard normal quantile of POWER


@dataclass(frozen=True, kw_only=True)
class Design:
    """How many runs each side has, whether they pair up by seed, and whether both directions count as
    harm."""

    baseline_runs: int
    candidate_runs: int
    paired: bool
    two_sided: bool = False

    @property
    def information(self) -> float:
        """1 / variance of the difference, for runs (pairs) of unit variance."""
        if self.paired:
            return float(self.candidate_runs)
        return 1.0 / (1.0 / self.baseline_runs + 1.0 / self.candidate_runs)

    @property
    def df(self) -> int:
        """Degrees of freedom that the runs themselves give."""
        return self.candidate_runs - 1 if self.paired else self.baseline_runs + self.candidate_runs - 2

    def grown(self, runs: int) -> Design:
        """The same design with `runs` runs on each side."""
        return Design(baseline_runs=runs, candidate_runs=runs, paired=self.paired, two_sided=self.two_sided)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A difference candidate - baseline with its standard error, and the two p-values that decide.

    `p_harm`: how often a difference this large comes from no harm at all. `p_noninferior`: how often one
    this small comes from harm at the margin. `p_beyond`: how often one this large comes from harm at the
    margin.
    """

    design: Design
    spread: Spread
    margin: float
    difference: float
    standard_error: float
    p_harm: float
    p_noninferior: float
    p_beyond: float

    @property
    def harm(self) -> float:
        """The difference in the direction that is worse; its size where both directions are."""
        return abs(self.difference) if self.design.two_sided else self.difference

    def interval(self, alpha: float) -> tuple[float, float]:
        """Confidence interval of the difference that lies inside the margin exactly when p_noninferior <=
        alpha."""
        tail = alpha / 2 if self.design.two_sided else alpha
        half = float(stdtrit(self.spread.df, 1 - tail)) * self.standard_error
        return self.difference - half, self.difference + half


def compare(
    baseline: NDArray[np.float64],
    candidate: NDArray[np.float64],
    *,
    margin: float,
    prior: float,
    prior_df: float,
    floor_variance: float = 0.0,
    paired: bool = False,
    two_sided: bool = False,
) -> Comparison:
    """Compare run-level numbers, shapes (k,) and (m,), k and m at least 1; `paired`: k == m, in the same
    order.

    `prior` > 0 is the expected SD between runs, worth `prior_df` degrees of freedom; `floor_variance` is
    the variance that a run's number has inside its run, below which the spread between runs is not
    believed.
    """
    design = Design(baseline_runs=len(baseline), candidate_runs=len(candidate), paired=paired, two_sided=two_sided)
    doubled = 2.0 if paired else 1.0  # the variance of a difference of two runs
    spread = moderate(_sum_of_squares(baseline, candidate, paired), design.df, doubled * prior * prior, prior_df)
    spread = Spread(variance=max(spread.variance, doubled * floor_variance), df=spread.df, prior_df=spread.prior_df)
    difference = math.fsum(candidate) / len(candidate) - math.fsum(baseline) / len(baseline)
    standard_error = math.sqrt(spread.variance / design.information)
    harm = abs(difference) if two_sided else difference
    sides = 2.0 if two_sided else 1.0
    return Comparison(
        design=design,
        spread=spread,
        margin=margin,
        difference=difference,
        standard_error=standard_error,
        p_harm=min(1.0, sides * float(stdtr(spread.df, -harm / standard_error))),
        p_noninferior=min(1.0, sides * float(stdtr(spread.df, (harm - margin) / standard_error))),
        p_beyond=min(1.0, sides * float(stdtr(spread.df, (margin - harm) / standard_error))),
    )


def _sum_of_squares(baseline: NDArray[np.float64], candidate: NDArray[np.float64], paired: bool) -> float:
    # fsum and sorting make the sums independent of the order of the runs, bit for bit.
    groups = [candidate - baseline] if paired else [baseline, candidate]
    return sum(math.fsum((x - math.fsum(group) / len(group)) ** 2 for x in group) for group in groups)


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Holm's step-down: which hypotheses are rejected while the chance of any false rejection stays <=
    alpha."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > alpha / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected


def pass_probability(found: Comparison, design: Design, truth: float, alpha: float) -> float:
    """Chance that `design` shows non-inferiority when the true harm is `truth`, at the spread that was
    found."""
    se, df = _scaled(found, design)
    if df <= 0:
        return 0.0
    return _noncentral_upper((found.margin - truth) / se, _critical(df, alpha, design), df)


def block_probability(found: Comparison, design: Design, truth: float, alpha: float) -> float:
    """Chance that `design` finds harm beyond the margin, significant at `alpha`, when the true harm is
    `truth`."""
    se, df = _scaled(found, design)
    if df <= 0:
        return 0.0
    significant = _noncentral_upper(truth / se, _critical(df, alpha, design), df)
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
    """The smallest true harm that these runs would block with 80 % chance, in harm units."""
    df = found.spread.df
    critical = _critical(df, alpha_block, found.design)
    shift = critical * (1 - 1 / (4 * df)) + _POWER_QUANTILE * math.sqrt(1 + critical**2 / (2 * df))
    return max(shift * found.standard_error, found.margin + _POWER_QUANTILE * found.standard_error)


def _scaled(found: Comparison, design: Design) -> tuple[float, float]:
    return math.sqrt(found.spread.variance / design.information), design.df + found.spread.prior_df


def _critical(df: float, alpha: float, design: Design) -> float:
    return float(stdtrit(df, 1 - (alpha / 2 if design.two_sided else alpha)))


def _noncentral_upper(shift: float, critical: float, df: float) -> float:
    """P(T > critical) for a non-central t, by the normal approximation of Abramowitz & Stegun 26.7.10.

    The exact function loses its digits at large shifts; here three digits are enough.
    """
    return float(ndtr((shift - critical * (1 - 1 / (4 * df))) / math.sqrt(1 + critical**2 / (2 * df))))
