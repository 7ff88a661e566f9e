"""The mean of several benchmarks: those that ask the same documents vary together, and all have the same seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from canary_mlflow.gates.evals.pairing import Paired
from canary_mlflow.gates.evals.rule import ItemTest, Scores, Seeds, clustered, seed_means, seeds_of
from canary_mlflow.gates.model.items import ItemCounts
from canary_mlflow.gates.model.rules import Role


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """A test as it is shown, of a benchmark or of a suite. `sides`: both scores; `in_points`: they are shares.
    `paired`: the items, if there are any."""

    name: str
    role: Role
    test: ItemTest
    sides: tuple[float, float]
    higher: bool
    in_points: bool
    seeds: tuple[int, int] = (1, 1)
    counts: ItemCounts | None = None
    notes: tuple[str, ...] = ()
    source: str = ""
    prior: float = 0.0
    paired: Paired | None = None

    @property
    def items(self) -> Paired:
        """Those of a part of a suite, which has some."""
        assert self.paired is not None
        return self.paired


SHARES: Sequence[Callable[[Compared], Scores]] = (
    lambda one: one.items.baseline if one.higher else 1 - one.items.baseline,
    lambda one: one.items.candidate if one.higher else 1 - one.items.candidate,
)
"""Each side's scores between 0 and 1, larger is better."""


def suite_test(margin: float, parts: Sequence[Compared]) -> ItemTest:
    """The test of the mean harm over these benchmarks, of which each counts alike."""
    m, variances, cautious, weights = len(parts), [], [], []
    for source in sorted({one.source for one in parts}):
        same = [one.items for one in parts if one.source == source]
        labels = sorted({label for one in same for label in one.labels})
        sums = [_spread_out(one, labels) / (len(one.keys) + 2) / m for one in same]
        variances.append(clustered(sums, [one.found.largest / (len(one.keys) + 2) / m for one in same]))
        least = math.fsum(math.sqrt(one.found.floor(margin)) for one in same) / m
        cautious.append(max(variances[-1], least**2))
        weights.append(variances[-1] ** 2 / max(min(one.found.effective for one in same) - 1, 1.0))
    total = math.fsum(variances)
    return ItemTest(
        harm=math.fsum(one.test.harm for one in parts) / m,
        worst=math.fsum(one.test.worst for one in parts) / m,
        variance=total,
        cautious=math.fsum(cautious),
        df=total**2 / math.fsum(weights),
        margin=margin,
        seeds=_seeds(parts),
    )


def _spread_out(one: Paired, labels: Sequence[str]) -> Scores:
    """The sum of each group, 0 where the benchmark has none of it."""
    found = np.zeros(len(labels))
    found[np.searchsorted(labels, one.labels)] = one.found.sums
    return found


def _seeds(parts: Sequence[Compared]) -> Seeds:
    """What the seeds add to the mean; if benchmarks differ in their number, as if all were lucky together."""
    added = [one.test.seeds for one in parts]
    if not any(one.variance for one in added):
        return Seeds()
    m, sides = len(parts), []
    for side in SHARES:
        rows = [seed_means(side(one)) for one in parts]
        if len({len(means) for means, _ in rows}) > 1:
            return Seeds(variance=math.fsum(one.variance for one in added) / m, df=min(one.df for one in added))
        sides.append((np.mean([means for means, _ in rows], axis=0), math.fsum(inside for _, inside in rows) / m**2))
    return seeds_of(sides, math.fsum(one.prior for one in parts) / m)
