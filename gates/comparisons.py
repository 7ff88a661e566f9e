"""The run-level test: moderated t, unpaired or paired by seed, with Holm's step-down.

Everything here is in harm units: larger is worse, on the scale (log or identity) of the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from gates.design import Design
from gates.spreads import Floor, Spread, Squares, cautious, decisive, moderate, pool, squares_of

Values = NDArray[np.float64]

NO_FLOOR = Floor()
_ONE_SIDED_95 = 1.6448536269514722


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A difference candidate - baseline with its standard error, and the two p-values that decide.

    `p_harm`: how often a difference this large comes from no harm at all. `p_noninferior`: how often one
    this small comes from harm at the margin. `p_beyond`: how often one this large comes from harm at the
    margin. `cautious`: the spread that PASS and the interval rest on. Where the runs differ by more than the prior
    says, it is theirs alone: with a prior smaller than the truth more than the 5 % that may would pass at the margin
    (tests/gates/test_comparisons.py). `expected`: the best guess of the spread, with all that the prior is worth, for
    planning. `scheduled`: what wobbles inside the runs was not counted, because they agree, and would have mattered.
    """

    design: Design
    spread: Spread
    margin: float
    difference: float
    standard_error: float
    cautious: Spread
    expected: Spread
    p_harm: float
    p_noninferior: float
    p_beyond: float
    separated: bool
    exchangeable: bool = True
    trusted: bool = True
    scheduled: bool = False

    @property
    def too_noisy(self) -> bool:
        """True where the t test is not believed.

        Runs were contended (`trusted` is false), or the tier cannot resolve half a margin with 95 % confidence: with a
        spread that contradicts its prior, or with twice as much noise as that.

        Such runs are not nearly normal: on a shared machine they are either quiet or contended, and the t test
        called 1.4 % of unchanged sides of 5 and 3 real ones slower.
        """
        if not self.trusted:
            return True
        resolved = 0.5 * self.margin / _ONE_SIDED_95
        ceiling = resolved if self.spread.prior_df == 0 else 2 * resolved
        return self.margin > 0 and self.standard_error > ceiling

    @property
    def chance_of_order(self) -> float:
        """How often exchangeable runs fall into two separate groups, the candidate's the worse: no normality needed."""
        design = self.design
        ways = (
            2**design.candidate_runs
            if design.paired
            else math.comb(design.baseline_runs + design.candidate_runs, design.candidate_runs)
        )
        return (2.0 if design.two_sided else 1.0) / ways

    def shows_harm(self, alpha: float) -> bool:
        """True if the t test may be believed, or the order of the runs alone says the same at level `alpha`.

        A mean of several runs and a single one are not exchangeable, so their order says nothing.
        """
        ordered = self.separated and self.exchangeable and self.chance_of_order <= alpha
        return not self.too_noisy or ordered

    @property
    def harm(self) -> float:
        """The difference in the direction that is worse; its size where both directions are."""
        return abs(self.difference) if self.design.two_sided else self.difference

    def interval(self, alpha: float) -> tuple[float, float]:
        """Confidence interval of the difference that lies inside the margin exactly when p_noninferior <=
        alpha."""
        tail = alpha / 2 if self.design.two_sided else alpha
        half = float(stdtrit(self.cautious.df, 1 - tail)) * self.design.error(self.cautious)
        return self.difference - half, self.difference + half


def compare(
    baseline: Values,
    candidate: Values,
    *,
    margin: float,
    prior: float,
    prior_df: float,
    planned: float | None = None,
    floor: Floor = NO_FLOOR,
    widened: bool = False,
    paired: bool = False,
    averaged: int = 1,
    sums: bool = False,
    exchangeable: bool = True,
    two_sided: bool = False,
    trusted: bool = True,
) -> Comparison:
    """Compare run-level numbers, shapes (k,) and (m,), k and m at least 1; `paired`: k == m, in the same
    order, each of the baseline's the mean of `averaged` runs.

    `prior` > 0 is the expected SD between runs, worth `prior_df` degrees of freedom, `planned` that by which more runs
    will be judged (None: the same); `sums`: pairs have nothing in common but perhaps their machine, so that their sums
    tell of the noise too; `exchangeable`: no number is the mean of several runs beside single ones; `floor`: the
    variance that a run's number has inside its run, below which the spread between runs is not believed; `widened`: the
    prior is of runs as wholes, and what short ones wobble besides is not in it yet; `trusted`: no run is known to have
    been contended.
    """
    design = Design(
        baseline_runs=len(baseline),
        candidate_runs=len(candidate),
        paired=paired,
        averaged=averaged,
        two_sided=two_sided,
    )
    squares = _squares(baseline, candidate, design, sums)
    least = floor.beneath(squares)
    besides = least if widened else 0.0
    known = prior * prior + besides
    guess = known if planned is None else planned * planned + besides
    single = min(len(baseline), len(candidate)) == 1
    spread = decisive(squares, known, prior_df, single).at_least(least)
    careful = cautious(squares, known, prior_df).at_least(least)
    difference = math.fsum(candidate) / len(candidate) - math.fsum(baseline) / len(baseline)
    harm = abs(difference) if two_sided else difference
    chance = _chance(spread, design)
    return Comparison(
        design=design,
        spread=spread,
        margin=margin,
        difference=difference,
        standard_error=design.error(spread),
        cautious=careful,
        expected=moderate(squares, guess, prior_df).at_least(least),
        p_harm=chance(-harm),
        p_noninferior=_chance(careful, design)(harm - margin),
        p_beyond=chance(margin - harm),
        separated=_separated(baseline, candidate, paired, two_sided),
        exchangeable=exchangeable and averaged == 1,
        trusted=trusted,
        scheduled=floor.variance > spread.variance,
    )


def _squares(baseline: Values, candidate: Values, design: Design, sums: bool) -> Squares:
    """What the runs differ by that nothing but chance can have set apart."""
    if not design.paired:
        return squares_of([baseline, candidate])
    averaged = design.averaged  # the variance of a difference, in variances of a run, is 1 + 1 / averaged
    squares = squares_of([candidate - baseline], 1.0 + 1.0 / averaged)
    return pool(squares, squares_of([averaged * baseline + candidate], 1.0 + averaged)) if sums else squares


def _chance(spread: Spread, design: Design) -> Callable[[float], float]:
    """The chance of a difference below a given one, at this spread; of either sign where both directions are harm."""
    sides, error = 2.0 if design.two_sided else 1.0, design.error(spread)
    return lambda difference: min(1.0, sides * float(stdtr(spread.df, difference / error)))


def _separated(baseline: Values, candidate: Values, paired: bool, two_sided: bool) -> bool:
    """True if every run (pair) of the candidate is worse; on either side where both directions are harm."""
    if paired:
        above, below = bool(np.all(candidate > baseline)), bool(np.all(candidate < baseline))
    else:
        above, below = bool(np.min(candidate) > np.max(baseline)), bool(np.max(candidate) < np.min(baseline))
    return above or (two_sided and below)


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
