"""The test of paired items: is the candidate worse beyond the limit, is it no worse than the limit?

After Miller, "Adding Error Bars to Evals" (arXiv 2411.00640): items are paired, and those of one group count together.
With two imaginary items, one that broke and one that was mended (after Bonett and Price, "Adjusted Wald confidence
interval for a difference of binomial proportions based on paired data", 2012), equal answers to few items show little.
A closed form: no random numbers, and sums by `fsum`, so that the same items give the same verdict, bit for bit.
Everything here is in harm: larger is worse. docs/measured/evals.md has the error rates (benchmarks/evals.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from canary_mlflow.gates.model.rules import SHIPPED_DF, Prior
from canary_mlflow.gates.stats.comparisons import moderate

Scores = NDArray[np.float64]
POWER = 0.8


@dataclass(frozen=True, kw_only=True, eq=False)
class Harms:
    """What the items of one benchmark show. `harms`: of each item on both sides. `groups`: the number of each item's
    group, from 0. `short`: the part of each item that the candidate lacks; after those of `harms`, 1 for each of which
    it has nothing. `stakes`: what each of them all has to lose. `resolution`: the smallest step between scores."""

    harms: Scores
    groups: NDArray[np.intp]
    short: Scores
    stakes: Scores
    resolution: float

    @cached_property
    def harm(self) -> float:
        """The mean over the items."""
        return math.fsum(self.harms.tolist()) / len(self.harms)

    @cached_property
    def largest(self) -> float:
        """The most that one item can break, as far as is known."""
        return max(float(np.abs(self.harms).max()), self.resolution)

    @property
    def missing(self) -> float:
        """Items that the candidate lacks, with parts of items."""
        return math.fsum(self.short.tolist())

    @cached_property
    def worst(self) -> float:
        """The mean if everything that the candidate lacks were broken: what PASS sees."""
        kept = math.fsum((self.harms * (1 - self.short[: len(self.harms)])).tolist())
        broken = math.fsum((self.short * np.maximum(self.stakes, self.largest)).tolist())
        return (kept + broken) / len(self.short)

    @cached_property
    def sums(self) -> Scores:
        """For each group, the sum of its items' distances from the mean."""
        return np.bincount(self.groups, weights=self.harms - self.harm).astype(np.float64, copy=False)

    @cached_property
    def effective(self) -> float:
        """The number of groups, if they were of one size."""
        sizes = np.bincount(self.groups)
        return len(self.harms) ** 2 / float(sizes @ sizes)

    @cached_property
    def variance(self) -> float:
        """Of the mean, by groups."""
        n = len(self.harms)
        return clustered([self.sums / (n + 2)], [self.largest / (n + 2)])

    def floor(self, margin: float) -> float:
        """The least variance that a mean harm of one margin has, near 0 % and 100 % too."""
        n, away = len(self.harms), (self.harms - self.harm).tolist()
        alone = (math.fsum(x * x for x in away) + 2 * self.largest**2) / (n + 1) / (n + 2)  # every item its own group
        return margin * max(self.resolution - margin, 0.0) / n * max(1.0, self.variance / alone)

    def needed(self, margin: float, alpha: float) -> int:
        """Items that would pass an unchanged candidate with POWER, if they are like these."""
        z = float(scipy.special.ndtri(1 - alpha))
        sd = math.sqrt(math.fsum(x * x for x in self.sums.tolist()) / len(self.harms))
        rare = z * z * max(self.resolution - margin, 0.0) / margin  # even if none of them breaks
        return math.ceil(max((sd * (z + float(scipy.special.ndtri(POWER))) / margin) ** 2, rare))


def clustered(sums: Sequence[Scores], largest: Sequence[float]) -> float:
    """The variance of a sum over benchmarks that ask the same groups, their sums and imaginary items scaled already."""
    clusters = len(sums[0]) + 2
    together = np.sum(sums, axis=0).tolist()
    return clusters / (clusters - 1) * (math.fsum(x * x for x in together) + 2 * math.fsum(largest) ** 2)


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """The variance that the choice of seeds adds to a difference, and its degrees of freedom."""

    variance: float = 0.0
    df: float = math.inf


def seed_means(scores: Scores) -> tuple[Scores, float]:
    """Each seed's mean, and how much of their variance the items explain, because seeds answer different ones right
    (which is inside the items' variance). `scores`: a row for each seed."""
    seeds, n = scores.shape
    if seeds == 1:
        return scores.mean(1), 0.0
    rest = scores - scores.mean(0) - scores.mean(1)[:, None] + scores.mean()
    return scores.mean(1), math.fsum((rest**2).ravel().tolist()) / ((seeds - 1) * (n - 1)) / n if n > 1 else 0.0


def seeds_of(sides: Sequence[tuple[Scores, float]], prior: float) -> Seeds:
    """What the seeds of both sides tell, with the SD expected: each side as `seed_means` gives it."""
    squares, df = 0.0, 0
    for means, inside in sides:
        between = math.fsum(((means - means.mean()) ** 2).tolist())
        squares += max(0.0, between - (len(means) - 1) * inside)
        df += len(means) - 1
    spread = moderate(squares, df, Prior(sd=prior, df=SHIPPED_DF, kind="shipped"))
    return Seeds(variance=spread.variance * sum(1 / len(means) for means, _ in sides), df=spread.df)


@dataclass(frozen=True, kw_only=True)
class ItemTest:
    """A mean harm beside a limit. `worst`: with what is lost. `variance`, `cautious`: for BLOCK and for PASS."""

    harm: float
    worst: float
    variance: float
    cautious: float
    df: float
    margin: float
    seeds: Seeds = Seeds()

    @property
    def p_harm(self) -> float:
        """How often harm as large as this is seen if there is none; 1 if none is seen beyond the limit."""
        if self.harm <= self.margin:
            return 1.0
        return _t(self.all_df, -self.harm / math.sqrt(self.variance + self.seeds.variance))

    @property
    def p_noninferior(self) -> float:
        """How often harm this small is seen if the true harm equals the limit."""
        return _t(self.all_df, (self.worst - self.margin) / self._error)

    @property
    def all_df(self) -> float:
        """The degrees of freedom of items and seeds together (Satterthwaite)."""
        v, s = self.variance, self.seeds.variance
        return (v + s) ** 2 / (v * v / self.df + s * s / self.seeds.df) if s else self.df

    @property
    def _error(self) -> float:
        return math.sqrt(self.cautious + self.seeds.variance)

    def interval(self, alpha: float) -> tuple[float, float]:
        """The range of the harm; it ends within the limit exactly where p_noninferior <= alpha."""
        half = float(scipy.special.stdtrit(self.all_df, 1 - alpha)) * self._error
        return self.harm - half, self.worst + half


def against(found: Harms, margin: float, seeds: Seeds) -> ItemTest:
    """The test of one benchmark."""
    return ItemTest(
        harm=found.harm,
        worst=found.worst,
        variance=found.variance,
        cautious=max(found.variance, found.floor(margin)),
        df=max(found.effective - 1, 1.0),
        margin=margin,
        seeds=seeds,
    )


def _t(df: float, at: Any) -> float:
    return float(scipy.special.stdtr(df, at) if math.isfinite(df) else scipy.special.ndtr(at))
