"""Trainings that end by what they have learned (early stopping, a target): each run ends at another step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gates.model.records import EDGE, Run, Series

LEAST_SHARED = 0.5
"""Of the longest run: what is shared must be most of a training."""

Sides = tuple[list[Run], list[Run]]


def up_to_shared_end(baseline: Sequence[Run], candidate: Sequence[Run]) -> tuple[Sides, int] | None:
    """Both sides up to the last step that all their runs reached, and that step.

    None if the training does not end by itself: then the baseline's own runs end at the same step. None too if a run of
    the candidate ends where none of the baseline's does: it would choose what is compared, or it trains longer.
    """
    left, right = ([run.last_step for run in side] for side in (baseline, candidate))
    by_itself = min(left) < (1 - EDGE) * max(left)
    alike = min(right) >= (1 - EDGE) * min(left) and (1 - EDGE) * max(right) <= max(left)
    shared, longest = min(*left, *right), max(*left, *right)
    if not (by_itself and alike and shared >= LEAST_SHARED * longest):
        return None
    return ([_up_to(run, shared) for run in baseline], [_up_to(run, shared) for run in candidate]), shared


def _up_to(run: Run, last: int) -> Run:
    return replace(run, last_step=last, series={name: _head(series, last) for name, series in run.series.items()})


def _head(series: Series, last: int) -> Series:
    keep = series.steps <= last
    return Series(name=series.name, steps=series.steps[keep], values=series.values[keep])
