"""How runs are set against each other, and what standard error follows from their spread."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gates.stats.spreads import Spread


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

    def error(self, spread: Spread) -> float:
        """Standard error of the difference, for runs with this spread."""
        return math.sqrt(spread.variance / self.information)

    @property
    def df(self) -> int:
        """The degrees of freedom that the runs themselves contribute."""
        return self.candidate_runs - 1 if self.paired else self.baseline_runs + self.candidate_runs - 2

    def grown(self, runs: int) -> Design:
        """The same design with `runs` runs on each side."""
        return replace(self, baseline_runs=runs, candidate_runs=runs)
