"""The plan of looks: when a growing candidate is judged, what each look may spend, which runs stand beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class FreshBaseline(StrEnum):
    """When a run of the baseline's code is made beside each added candidate run. DIFFERS: if the stored runs were made
    on another host or day."""

    NEVER = "never"
    DIFFERS = "differs"
    ALWAYS = "always"


class WithoutSource(StrEnum):
    """What happens if the baseline's code is not available: judge by its stored runs alone, or stop."""

    UNPAIRED = "unpaired"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Looks:
    """When a growing candidate is judged: at each of these numbers of `runs`, with these `shares` of both error levels.

    The shares add up to 1, so that looking several times spends no more than looking once (union bound).
    """

    runs: tuple[int, ...]
    shares: tuple[float, ...]
    fresh_baseline: FreshBaseline
    without_source: WithoutSource

    def reached(self, candidate_runs: int, taken: Sequence[int] = ()) -> int:
        """The look, counted from 1, that a candidate with so many runs is at. `taken`: how many runs it had at each
        earlier look at other evidence. A number between two looks counts as the later one if the earlier one is
        spent."""
        return min(len(self.runs), max(1, self._planned(candidate_runs), self._spent(taken) + 1))

    def share(self, look: int, taken: Sequence[int] = ()) -> float:
        """The share that this look may spend: its own and those of earlier looks that were never taken."""
        return sum(self.shares[self._spent(taken) : look])

    def ending_with(self, runs: int) -> Looks:
        """The plan with its last look at no fewer than `runs` runs."""
        return replace(self, runs=(*self.runs[:-1], max(self.runs[-1], runs)))

    def share_beyond(self, taken: Sequence[int]) -> float:
        """The share that one more look after the plan's last may spend: half, then a quarter … of what the plan has, so
        that however many follow, all of them together err no more often than the plan (union bound)."""
        within = next((count for count in range(len(taken) + 1) if self._spent(taken[:count]) == len(self.runs)), 0)
        return float(0.5 ** (len(taken) - within + 1))

    @staticmethod
    def share_of_try(number: int) -> float:
        """The share of PASS's error level at this try of the same code against the same champion, counted from 1.

        All of it at the first try, then 1/2, 1/6, 1/12 …, 1/(k(k - 1)), which add up to one more level, however many
        tries follow (union bound).
        """
        return 1.0 if number <= 1 else 1.0 / (number * (number - 1))

    def left(self, taken: Sequence[int]) -> tuple[int, ...]:
        """The numbers of runs at which looks are still to come."""
        return self.runs[self._spent(taken) :]

    def _planned(self, runs: int) -> int:
        return sum(planned <= runs for planned in self.runs)

    def _spent(self, taken: Sequence[int]) -> int:
        """How many looks a candidate has used up that was looked at with these numbers of runs, in this order."""
        spent = 0
        for runs in taken:
            spent = min(len(self.runs), max(spent + 1, self._planned(runs)))
        return spent
