"""Results of a benchmark, item by item: what a harness found of one side's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class Item:
    """One question. `scores`: of each repeat; None is an error of the harness, not of the model. `prompt` and `answer`:
    digests of what the model was shown, in all repeats, and of what it generated in the first, "" if unknown. `asked`
    and `said`: texts for readers."""

    scores: tuple[float | None, ...]
    group: str
    prompt: str = ""
    answer: str = ""
    asked: str = ""
    said: str = ""

    def with_repeat(self, other: Item) -> Item:
        """The same question answered again; if it was asked otherwise, it has both prompts, which no side with one
        has."""
        prompts = sorted({self.prompt, other.prompt})
        return replace(self, scores=(*self.scores, *other.scores), prompt="|".join(prompts))

    @property
    def scored(self) -> tuple[float, ...]:
        """The scores without the harness's errors."""
        return tuple(score for score in self.scores if score is not None)

    @property
    def mean(self) -> float | None:
        """Over the repeats, in no order; None without a score."""
        if len(self.scores) == 1:
            return self.scores[0]
        scored = self.scored
        return sum(sorted(scored)) / len(scored) if scored else None


@dataclass(frozen=True, kw_only=True)
class Table:
    """One benchmark by one scorer. `source`: the documents that it asks about, which other tables may share. `facts`:
    what must agree. `grouped`: what its groups are. `aggregate`: for a score that no item has, such as a corpus's F1.
    `run`: the harness's own name for its run."""

    benchmark: str
    source: str
    items: Mapping[str, Item] = field(default_factory=dict)
    higher: bool = True
    facts: Mapping[str, str] = field(default_factory=dict)
    grouped: str = ""
    aggregate: float | None = None
    run: str = ""

    @property
    def score(self) -> float | None:
        """The mean over the items; None without a score."""
        means = [item.mean for item in self.items.values() if item.mean is not None]
        return sum(means) / len(means) if means else self.aggregate


Evaluated = Mapping[str, Sequence[Table]]
"""Benchmark → one table for each seed of the training."""


@dataclass(frozen=True, kw_only=True)
class Flip:
    """An item that the candidate does worse on. `was`, `now`: the scores; `before`, `after`: the answers."""

    item: str
    was: float
    now: float
    asked: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class ItemCounts:
    """What a check rests on. `groups`: as many as if all were of one size. `lost`: items, or parts of them, that the
    candidate lacks. `needed`: items that would pass an unchanged candidate 4 times out of 5."""

    items: int
    groups: float
    broke: int
    mended: int
    lost: float
    needed: int
