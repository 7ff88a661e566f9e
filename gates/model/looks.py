"""The plan of looks: when a growing candidate is judged, what each look may spend, which runs stand beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class FreshBaseline(StrEnum):
    """When a run of the baseline's code is made beside each added candidate run. DIFFERS: where the stored ones were
    made on another host or day."""

    NEVER = "never"
    DIFFERS = "differs"
    ALWAYS = "always"


class WithoutSource(StrEnum):
    """What happens where the baseline's code cannot be had: judge with its stored runs alone, or stop."""

    UNPAIRED = "unpaired"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Looks:
    """When a growing candidate is judged: after `runs` runs each, with these `shares` of both error levels.

    The shares add up to 1, so that looking several times spends no more than looking once (union bound).
    """

    runs: tuple[int, ...]
    shares: tuple[float, ...]
    fresh_baseline: FreshBaseline
    without_source: WithoutSource

    def reached(self, candidate_runs: int, taken: Sequence[int] = ()) -> int:
        """The look, counted from 1, that a candidate with so many runs is at; `taken`: how many it had at each look at
        other evidence before. Numbers between two looks count as the later one, where the earlier is spent."""
        return min(len(self.runs), max(1, self._planned(candidate_runs), self._spent(taken) + 1))

    def share(self, look: int, taken: Sequence[int] = ()) -> float:
        """What this look may spend: its own share and those of looks before it that were never taken."""
        return sum(self.shares[self._spent(taken) : look])

    def ending_with(self, runs: int) -> Looks:
        """The plan, its last look at no fewer runs than that."""
        return replace(self, runs=(*self.runs[:-1], max(self.runs[-1], runs)))

    def share_beyond(self, taken: Sequence[int]) -> float:
        """What one more look may spend after the plan's last: half, then a quarter … of what the plan has, so that all
        of them together err no more often than the plan does, however many they are (union bound)."""
        within = next((count for count in range(len(taken) + 1) if self._spent(taken[:count]) == len(self.runs)), 0)
        return float(0.5 ** (len(taken) - within + 1))

    @staticmethod
    def share_of_try(number: int) -> float:
        """What PASS may spend at this try of the same code beside the same champion, counted from 1.

        All of its level at the first, then 1/2, 1/6, 1/12 …, 1/(k(k - 1)), which add up to one more level, however many
        tries follow (union bound).
        """
        return 1.0 if number <= 1 else 1.0 / (number * (number - 1))

    def left(self, taken: Sequence[int]) -> tuple[int, ...]:
        """The runs at which a look is still to be taken."""
        return self.runs[self._spent(taken) :]

    def _planned(self, runs: int) -> int:
        return sum(planned <= runs for planned in self.runs)

    def _spent(self, taken: Sequence[int]) -> int:
        """How many looks are behind a candidate that was looked at with so many runs each time, in this order."""
        spent = 0
        for runs in taken:
            spent = min(len(self.runs), max(spent + 1, self._planned(runs)))
        return spent
