"""Finds which of several changes breaks something, and since when: delta debugging over sets (Zeller and Hildebrandt,
2002), then bisection over what came one after the other, such as releases or commits. What cannot be tried, or fails
otherwise, tells nothing, and is skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import TypeVar

Item = TypeVar("Item")


class Answer(StrEnum):
    """What a trial tells."""

    BAD = "bad"
    GOOD = "good"
    UNTESTABLE = "untestable"


Test = Callable[[Sequence[Item]], Answer]


def smallest(items: Sequence[Item], test: Test[Item]) -> list[Item]:
    """A smallest BAD subset of the items, which together must be BAD. `items`: the likeliest first; it is tried alone
    before anything is halved."""
    left, parts = list(items), 2
    if len(left) > 1 and test(left[:1]) is Answer.BAD:
        return left[:1]
    while len(left) > 1:
        chunks = _chunks(left, parts)
        bad = next((chunk for chunk in chunks if test(chunk) is Answer.BAD), None)
        if bad is not None:
            left, parts = bad, 2
            continue
        if parts > 2:
            rests = [[one for one in left if one not in chunk] for chunk in chunks]
            rest = next((each for each in rests if test(each) is Answer.BAD), None)
            if rest is not None:
                left, parts = rest, max(parts - 1, 2)
                continue
        if parts >= len(left):
            return left
        parts = min(len(left), 2 * parts)
    return left


def first_bad(items: Sequence[Item], test: Callable[[Item], Answer]) -> tuple[Item, list[Item]]:
    """The first BAD one, and those between the last GOOD one and it that could not be tried. `items`: in order; the
    last must be BAD, and everything before the first good."""
    good, bad = -1, len(items) - 1
    skipped: set[int] = set()
    while True:
        open_ones = [at for at in range(good + 1, bad) if at not in skipped]
        if not open_ones:
            return items[bad], [items[at] for at in sorted(skipped) if good < at < bad]
        at = min(open_ones, key=lambda place: abs(place - (good + bad) / 2))
        answer = test(items[at])
        if answer is Answer.BAD:
            bad = at
        elif answer is Answer.GOOD:
            good = at
        else:
            skipped.add(at)


def _chunks(items: list[Item], parts: int) -> list[list[Item]]:
    edges = [round(at * len(items) / parts) for at in range(parts + 1)]
    return [items[a:b] for a, b in pairwise(edges) if b > a]
