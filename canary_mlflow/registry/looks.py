"""Which looks of its plan a version has been given beside which champion: a tag of its session."""

from __future__ import annotations

LOOKS_TAG = "canary.looks"
"""The champion, and the numbers of runs at which the version was looked at beside it: `4: 1 3`."""


def looks_taken(tag: str, champion: str | None) -> list[int]:
    """The numbers of runs at which looks were taken beside this champion."""
    beside, _, numbers = tag.partition(":")
    return [int(number) for number in numbers.split() if number.isdigit()] if beside == str(champion) else []


def looks_tag(before: str, champion: str | None, planned_runs: int) -> str:
    """The tag's value with one more look."""
    taken = sorted({*looks_taken(before, champion), planned_runs})
    return f"{champion}: {' '.join(map(str, taken))}"
