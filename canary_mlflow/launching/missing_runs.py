"""The runs that a look of a plan still needs: whose, with which seeds, in which order, and in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gates.model.wording import counted, listed

ORDER = "b c c b"  # so that neither side always has the earlier, cooler machine


class Turn(StrEnum):
    """Which side's run is made."""

    FRESH = "fresh"  # the champion's, made now
    CANDIDATE = "candidate"


@dataclass(frozen=True)
class Missing:
    """The candidate's missing runs by seed. `with_fresh`: each gets a fresh run of the champion with the same seed,
    unless one exists (`there`). `first`: the seeds of existing candidate runs that lack one."""

    seeds: tuple[int, ...]
    with_fresh: bool = False
    first: tuple[int, ...] = ()
    there: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """The total number of missing runs."""
        fresh = len(self.first) + len(set(self.seeds) - set(self.there)) if self.with_fresh else 0
        return len(self.seeds) + fresh

    def turns(self) -> Iterator[tuple[Turn, int]]:
        """Which side runs with which seed, in order. Missing fresh runs come first: one more pair tells much
        (benchmarks/gate_plans.py)."""
        if not self.with_fresh:
            yield from ((Turn.CANDIDATE, seed) for seed in self.seeds)
            return
        yield from ((Turn.FRESH, seed) for seed in self.first)
        for number, seed in enumerate(self.seeds):
            turns = (Turn.FRESH, Turn.CANDIDATE) if number % 2 == 0 else (Turn.CANDIDATE, Turn.FRESH)
            yield from ((turn, seed) for turn in turns if turn is Turn.CANDIDATE or seed not in self.there)

    def words(self) -> str:
        """What will be made, such as "2 more runs (seeds 3 and 4), each beside a fresh run of the champion"."""
        if not self.seeds:
            return f"{counted(len(self.first), 'fresh run')} of the champion ({_seeds(self.first)})"
        fresh = f", each beside a fresh run of the champion (order {ORDER})" if self.with_fresh else ""
        earlier = f", after one for each existing run ({_seeds(self.first)})" if self.first else ""
        return f"{counted(len(self.seeds), 'more run')} ({_seeds(self.seeds)}){fresh}{earlier}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seeds {listed([str(seed) for seed in seeds], most=9)}"
