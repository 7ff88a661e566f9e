"""Trainings that end by what they have learned (early stopping, a target): each run ends at another step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gates.evidence.comparability import UNEQUAL
from gates.model.records import Run, Series

LEAST_SHARED = 0.5
"""Of the longest run: what is shared must be most of a training."""

Sides = tuple[list[Run], list[Run]]


def up_to_shared_end(baseline: Sequence[Run], candidate: Sequence[Run]) -> tuple[Sides, int] | None:
    """Both sides up to the last step that all their runs reached, and that step.

    None if the training does not end by itself: then the baseline's own runs end at the same step. None too if one
    side's runs all end before the other's: that is another training, or a change that no shared part shows.
    """
    left, right = ([run.last_step for run in side] for side in (baseline, candidate))
    shared, longest = min(*left, *right), max(*left, *right)
    by_itself = min(left) < (1 - UNEQUAL) * max(left)
    overlap = min(right) <= max(left) and min(left) <= max(right)
    if not (by_itself and overlap and shared >= LEAST_SHARED * longest):
        return None
    return ([_up_to(run, shared) for run in baseline], [_up_to(run, shared) for run in candidate]), shared


def _up_to(run: Run, last: int) -> Run:
    return replace(run, last_step=last, series={name: _head(series, last) for name, series in run.series.items()})


def _head(series: Series, last: int) -> Series:
    keep = series.steps <= last
    return Series(name=series.name, steps=series.steps[keep], values=series.values[keep])
