"""The time at which a run reached each step, and the tokens that it had seen: the other two axes of its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from canary_mlflow.analysis.downsampling import Steps, Values
from canary_mlflow.pages.curves import figures
from canary_mlflow.pages.kept_points import kept_points
from canary_mlflow.tracking.describing.schema import mlflow_key
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.reading.histories import series_of

EVERY_STEP = ("step_time", "loss", "learning_rate")  # the first one that a run has gives the times of its steps
MOST = 400  # points of a clock; time between two points is interpolated


def clocks_of(connection: sa.Connection, runs: Sequence[RunFacts]) -> dict[str, Any]:
    """By run: `steps`, `seconds` since its first row, and `tokens` in total, None if a run records none. A run
    without rows has no clock."""
    told = {run.run_id: key for run in runs if (key := next(filter(run.latest.get, map(mlflow_key, EVERY_STEP)), ""))}
    tokens = mlflow_key("tokens")
    found = kept_points(connection, {run_id: [key, tokens] for run_id, key in told.items()})
    made = {}
    for run_id, key in told.items():
        rows, counted = found[run_id, key], series_of("tokens", found[run_id, tokens]).finite_only()
        if not len(rows):
            continue
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        steps, first = np.unique(rows[:, 0].astype(np.int64), return_index=True)
        seconds = np.maximum.accumulate((rows[first, 1] - rows[first[0], 1]) / 1000)
        summed = in_all(steps, counted.steps, counted.values) if len(counted.steps) else None
        keep = np.unique(np.linspace(0, len(steps) - 1, min(MOST, len(steps))).astype(np.int64))
        made[run_id] = {
            "steps": steps[keep].tolist(),
            "seconds": figures(seconds[keep]),
            "tokens": None if summed is None else figures(summed[keep]),
        }
    return made


def in_all(steps: Steps, counted: Steps, tokens: Values) -> Values:
    """Tokens up to each step; a step without a count is taken to have as many as the one before."""
    each = tokens[np.maximum(np.searchsorted(counted, steps, side="right") - 1, 0)]
    return np.asarray(np.cumsum(each * np.diff(steps, prepend=steps[0] - 1)))


def middle(clocks: Mapping[str, Any]) -> dict[str, Any] | None:
    """One clock for a band of several runs: that of the run with the middle time; None if there is no clock."""
    ordered = sorted(clocks.values(), key=lambda clock: (len(clock["steps"]), clock["seconds"][-1]))
    return ordered[len(ordered) // 2] if ordered else None
