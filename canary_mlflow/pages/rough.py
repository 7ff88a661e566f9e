"""A first look at long series: some rows of each, evenly apart, so that there is a curve before all rows are read."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.reading.points import Points, points_over

ROWS = 400  # of one series
LONG = 5_000  # steps; a series that is not longer is read whole
METRICS = sa.table("metrics", *map(sa.column, ("run_uuid", "key", "step")))


def rough_points(connection: sa.Connection, run: RunFacts, keys: Sequence[str]) -> tuple[dict[str, Points], bool]:
    """The points of each series by key, about ROWS of a long one; and whether any series is long."""
    long = [key for key in keys if key in run.latest and run.latest[key].step > LONG]
    found = points_over(connection, {run.run_id: [key for key in keys if key not in long]})
    for key in long:
        steps = steps_apart(connection, run.run_id, key, run.latest[key].step // ROWS)
        found |= points_over(connection, {run.run_id: [key]}, at=steps)
    return {key: points for (_, key), points in found.items()}, bool(long)


def steps_apart(connection: sa.Connection, run_id: str, key: str, stride: int) -> list[int]:
    """The first step that has a row, and after each the next that is at least `stride` later. One index lookup for
    each, so that neither the length of a series nor how often it was logged matters."""
    mine = (METRICS.c.run_uuid == run_id, METRICS.c.key == key)
    walk = sa.select(sa.func.min(METRICS.c.step).label("step")).where(*mine).cte("walk", recursive=True)
    later = sa.select(sa.func.min(METRICS.c.step)).where(*mine, METRICS.c.step >= walk.c.step + stride)
    steps = walk.union_all(sa.select(later.scalar_subquery()).where(walk.c.step.is_not(None)))
    return [step for step in connection.execute(sa.select(steps.c.step)).scalars() if step is not None]
