"""The run-level tests: one for harm, in two forms that complement each other, and one for non-inferiority.

Everything here is in harm units: larger is worse, on the scale (log or identity) of the rule. The mathematics are in
docs/measured/judge.md, and benchmarks/gate_histories.py has the data that the constants were chosen on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, combinations_with_replacement, product
from statistics import fmean, median

import numpy as np
import scipy

from canary_mlflow.gates.model.records import Values
from canary_mlflow.gates.model.rules import Prior


@dataclass(frozen=True, kw_only=True)
class Design:
    """How many numbers each side has, whether both directions count as harm, and whether they pair up by seed.
    `averaged`: the least number of runs behind each baseline number; in a pair, the mean of exactly that many stands
    against one run of the candidate."""

    baseline_runs: int
    candidate_runs: int
    paired: bool
    averaged: int = 1
    two_sided: bool = False

    @property
    def information(self) -> float:
        """1 / variance of the difference, for runs of unit variance."""
        if self.paired:
            return self.candidate_runs / (1.0 + 1.0 / self.averaged)
        return 1.0 / (1.0 / self.baseline_runs + 1.0 / self.candidate_runs)

    @property
    def df(self) -> int:
        """The degrees of freedom that the runs themselves contribute."""
        return self.candidate_runs - 1 if self.paired else self.baseline_runs + self.candidate_runs - 2

    @property
    def tails(self) -> int:
        """In how many directions a difference counts as harm: each has its part of a level."""
        return 2 if self.two_sided else 1

    def grown(self, runs: int) -> Design:
        return replace(self, baseline_runs=runs, candidate_runs=runs)


TOLD = 2.0
"""Up to this multiple of its spread, a prior counts in full: policies are measured at twice their priors."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Variance of one run's number, and the degrees of freedom it rests on, `prior_df` of them from the prior."""

    variance: float
    df: float
    prior_df: float


def squares_of(groups: Sequence[Values], per_run: float = 1.0) -> tuple[float, int]:
    """The sum of squares within each group, and its degrees of freedom. `per_run`: the values' variance, in units of a
    run's variance.

    fsum makes it independent of the order of the runs, bit for bit.
    """
    with np.errstate(over="ignore"):  # a spread too large for a float is infinite, and then nothing is shown
        total = math.fsum(map(_squares, groups))
    return total / per_run, sum(len(group) - 1 for group in groups)


def _squares(group: Values) -> float:
    mean = fmean(group)
    return math.fsum((x - mean) ** 2 for x in group)


def moderate(squares: float, df: int, prior: Prior) -> Spread:
    """The measured spread combined with the prior, weighted by degrees of freedom. The further runs exceed TOLD times
    the prior's spread, the less the prior is worth, down to nothing."""
    weight = prior.df
    if df and squares > 0:
        told = min(1.0, TOLD * prior.sd / math.sqrt(squares / df))
        weight *= told * told
    return Spread(variance=(weight * prior.sd * prior.sd + squares) / (weight + df), df=weight + df, prior_df=weight)


def cautious(squares: float, df: int, prior: Prior) -> Spread:
    """The same, but the runs' own spread if it exceeds the prior's. PASS rests on this one.

    With a prior smaller than the truth, more than the permitted 5 % would pass at the margin
    (tests/gates/test_comparisons.py).
    """
    if df > 0 and squares > df * prior.sd * prior.sd:
        return Spread(variance=squares / df, df=df, prior_df=0.0)
    return moderate(squares, df, prior)


BY_MEANS, BY_MEDIAN = 0.6, 0.4
"""How the level of BLOCK is split between the two forms of the test."""
SURPRISE = 3.0
"""The second form assumes runs this many times as noisy as expected, beside the spread that they show."""
_MEDIAN_ERROR = math.sqrt(math.pi / 3)  # standard error of normal runs' Hodges-Lehmann shift / that of means
_MIDDLE_DIFFERENCE = 0.9539  # the median of the absolute difference of two standard normal numbers


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A difference candidate - baseline, and the two p-values that decide.

    `difference`: of the means. `typical`: the median of the differences between any two runs (Hodges and Lehmann),
    which one odd run does not move. `usual`: the SD of a run, as it is or from the median differences within each side.
    """

    design: Design
    prior: Prior
    spread: Spread
    cautious: Spread
    sides: tuple[Spread, ...]
    margin: float
    difference: float
    typical: float
    usual: float

    def error(self, spread: Spread) -> float:
        """Standard error of the difference for runs with this spread."""
        return math.sqrt(max(spread.variance / self.design.information, sys.float_info.min))

    @property
    def harms(self) -> tuple[float, float]:
        """Both estimates in the direction that is worse; their size if both directions are."""
        both = self.design.two_sided
        return (abs(self.difference), abs(self.typical)) if both else (self.difference, self.typical)

    @property
    def harm(self) -> float:
        """The larger of the two: the harm that either form of the test may show."""
        return max(self.harms)

    @property
    def p_harm(self) -> float:
        """How often harm as large as this is seen if there is none; 1 if none is seen beyond the margin.

        Either the means differ by more than runs with this spread explain (moderated t), or the typical difference is
        more than runs noisier by three times what is expected would show. The level is split between the two forms.
        """
        by_means, by_median = self.harms
        tails, p = self.design.tails, 1.0
        if by_means > self.margin:
            p = tails * float(scipy.special.stdtr(self.spread.df, -by_means / self.error(self.spread))) / BY_MEANS
        if by_median > self.margin:
            p = min(p, tails * float(scipy.special.ndtr(-by_median / self.doubted_error)) / BY_MEDIAN)
        return min(1.0, p)

    @property
    def doubted_error(self) -> float:
        """Standard error of the typical difference for runs noisier than they usually are by SURPRISE times what is
        expected."""
        return math.hypot(SURPRISE * self.prior.sd, self.usual) * _MEDIAN_ERROR / math.sqrt(self.design.information)

    @property
    def p_noninferior(self) -> float:
        """How often a difference this small is seen if the true harm equals the margin."""
        error, df = self._of_pass()
        return min(1.0, self.design.tails * float(scipy.special.stdtr(df, (self.harms[0] - self.margin) / error)))

    def interval(self, alpha: float) -> tuple[float, float]:
        """Confidence interval of the difference that lies inside the margin exactly when p_noninferior <= alpha."""
        error, df = self._of_pass()
        half = float(scipy.special.stdtrit(df, 1 - alpha / self.design.tails)) * error
        return self.difference - half, self.difference + half

    def least_harms(self, alpha: float) -> tuple[float, float]:
        """The smallest difference of the means that blocks at level `alpha`, and the smallest typical difference."""
        tail = alpha / self.design.tails
        by_means = float(scipy.special.stdtrit(self.spread.df, 1 - BY_MEANS * tail)) * self.error(self.spread)
        by_median = float(scipy.special.ndtri(1 - BY_MEDIAN * tail)) * self.doubted_error
        return max(self.margin, by_means), max(self.margin, by_median)

    def _of_pass(self) -> tuple[float, float]:
        """The standard error and the degrees of freedom that PASS rests on: where both sides have a spread, they may
        differ (Welch), as three runs of a candidate may be twice as noisy as the baseline's."""
        if self.sides:
            counts = (self.design.baseline_runs, self.design.candidate_runs)
            parts = [side.variance / count for side, count in zip(self.sides, counts, strict=True)]
            total = math.fsum(parts)
            weights = math.fsum(part * part / side.df for part, side in zip(parts, self.sides, strict=True))
            if weights > 0 and math.isfinite(total):
                return math.sqrt(total), total * total / weights
        return self.error(self.cautious), self.cautious.df


def compare(
    baseline: Values,
    candidate: Values,
    *,
    margin: float,
    prior: Prior,
    paired: bool = False,
    averaged: int = 1,
    two_sided: bool = False,
) -> Comparison:
    """Compare run-level numbers, shapes (k,) and (m,), k and m at least 1. `paired`: k == m, in the same order, and
    each baseline number is the mean of `averaged` runs. `prior`: the SD expected between runs."""
    design = Design(
        baseline_runs=len(baseline),
        candidate_runs=len(candidate),
        paired=paired,
        averaged=averaged,
        two_sided=two_sided,
    )
    # The variance of a pair's difference, in units of a run's variance, is 1 + 1 / averaged.
    groups, per_run = ([candidate - baseline], 1.0 + 1.0 / averaged) if paired else ([baseline, candidate], 1.0)
    squares, df = squares_of(groups, per_run)
    apart = not paired and min(len(baseline), len(candidate)) > 1
    return Comparison(
        design=design,
        prior=prior,
        spread=moderate(squares, df, prior),
        cautious=cautious(squares, df, prior),
        sides=tuple(cautious(*squares_of([side]), prior) for side in (baseline, candidate)) if apart else (),
        margin=margin,
        difference=fmean(candidate) - fmean(baseline),
        typical=_typical(baseline.tolist(), candidate.tolist(), paired),
        usual=_usual([group.tolist() for group in groups], squares * per_run) / math.sqrt(per_run),
    )


def _usual(groups: Sequence[Sequence[float]], squares: float) -> float:
    """The SD of runs, whose sum of squares is known, or of normal runs whose median difference between any two is a
    side's, if that is less: one odd run of five enlarges the former, and one of three in line with the other side,
    where the baseline's are equal, the latter."""
    known = [group for group in groups if len(group) > 1]
    if not known:
        return 0.0
    apart = [median(abs(one - other) for one, other in combinations(group, 2)) / _MIDDLE_DIFFERENCE for group in known]
    return min(math.hypot(*apart) / math.sqrt(len(known)), math.sqrt(squares / sum(len(each) - 1 for each in known)))


def _typical(baseline: Sequence[float], candidate: Sequence[float], paired: bool) -> float:
    """The median difference of any two runs; of pairs, that of the means of any two differences, each with itself too
    (Hodges and Lehmann)."""
    if not paired:
        return median(now - before for before, now in product(baseline, candidate))
    differences = [now - before for before, now in zip(baseline, candidate, strict=True)]
    return median((one + other) / 2 for one, other in combinations_with_replacement(differences, 2))
