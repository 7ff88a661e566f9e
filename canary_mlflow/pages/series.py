"""The series of runs as pages draw them: whole, some points at once, and what is not sent yet."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from canary_mlflow import tags
from canary_mlflow.files.documents import parse_json
from canary_mlflow.files.source import open_regular
from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.gates.model.records import Series
from canary_mlflow.pages.requests import folder_of
from canary_mlflow.reports.charts import BAND
from canary_mlflow.tracking.describing.schema import mlflow_key
from canary_mlflow.tracking.reading.database import points_over
from canary_mlflow.tracking.reading.facts import Latest, RunFacts
from canary_mlflow.tracking.reading.records import NONE, Points, series_of
from canary_mlflow.tracking.sinks import FIELDS, STABILITY
from canary_mlflow.tracking.stores.read_only import POINTS

LONG = 5_000  # rows, of which a first look has only some
LATE = 100  # steps: a slow rank's values arrive after those of later steps
TAIL = 1 << 18  # bytes at the end of the file that are looked at: some ten seconds of the fastest training
MANY = 1 << 53  # steps; a float has no room for more
WORDS = ("NaN", "Infinity", "-Infinity")  # as tracking/delivery/lines.py writes what JSON cannot


def read_series(
    connection: sa.Connection, run_ids: Sequence[str], names: Sequence[str]
) -> dict[str, dict[str, Series]]:
    """Series by run and canonical name, in one bulk read; those without points are left out."""
    found = points_over(connection, {run_id: list(map(mlflow_key, names)) for run_id in run_ids})
    return {run_id: named(names, points) for run_id, points in found.items()}


def drawn_series(
    connection: sa.Connection,
    run: RunFacts,
    names: Sequence[str],
    after: int | None,
    until: int | None = None,
    *,
    rough: bool,
) -> tuple[dict[str, Series], bool]:
    """A run's series by canonical name, with what it has not sent yet; and whether any has only some of its points,
    which `rough` allows if it is long."""
    keys = [key for key in map(mlflow_key, names) if key in run.latest]
    long = [key for key in keys if run.latest[key].step > LONG] if rough else []
    points = points_over(connection, {run.run_id: [key for key in keys if key not in long]}, after, until)[run.run_id]
    for key in long:
        steps = steps_apart(connection, run.run_id, key, run.latest[key].step // BAND)
        points |= points_over(connection, {run.run_id: [key]}, at=steps)[run.run_id]
    for key, rows in (pending(run) if until is None else {}).items():
        points[key] = np.concatenate([points.get(key, NONE), rows])
    return named(names, points), bool(long)


def named(names: Sequence[str], points: Mapping[str, Points]) -> dict[str, Series]:
    """The series of these names that have points."""
    found = ((name, points.get(mlflow_key(name), NONE)) for name in names)
    return {name: series_of(name, rows) for name, rows in found if len(rows)}


def steps_apart(connection: sa.Connection, run_id: str, key: str, stride: int) -> list[int]:
    """The first step that has a row, and after each the next that is at least `stride` later. One index lookup for
    each, so that neither the length of a series nor how often it was logged matters."""
    mine = (POINTS.c.run_uuid == run_id, POINTS.c.key == key)
    walk = sa.select(sa.func.min(POINTS.c.step).label("step")).where(*mine).cte("walk", recursive=True)
    later = sa.select(sa.func.min(POINTS.c.step)).where(*mine, POINTS.c.step >= walk.c.step + stride)
    steps = walk.union_all(sa.select(later.scalar_subquery()).where(walk.c.step.is_not(None)))
    return [step for step in connection.execute(sa.select(steps.c.step)).scalars() if step is not None]


# ---- not sent yet ----------------------------------------------------------------------------------------------------
# A training sends its rows to the store every ten seconds, because sending slows it down. It writes them to
# stability.jsonl within a fifth of a second; a server that can read this file shows them as early as that.


def pending(run: RunFacts) -> dict[str, Points]:
    """The points by MLflow key after the last step that the store has; empty if the run has ended, or its file cannot
    be read here."""
    place = folder_of(run) if run.running else None
    if place is None:
        return {}
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for step, moment, row in rows_after(run.step, tail(place)):
        for name, value in values_of(row, run.tags.get(tags.ALGO, "")):
            found[mlflow_key(name)].append((step, moment, value))
    return {key: np.array(rows[::-1], dtype=np.float64) for key, rows in found.items()}


def up_to_date(run: RunFacts) -> RunFacts:
    """The run with its newest rows, so that its page has one clock."""
    last = ((key, max(rows.tolist())) for key, rows in pending(run).items())
    news = {key: Latest(step=int(step), timestamp=int(moment), value=value) for key, (step, moment, value) in last}
    return replace(run, latest={**run.latest, **news})


def tail(folder: Path) -> list[bytes]:
    """The last whole lines of the file; none if it cannot be read."""
    try:
        with open_regular(folder / STABILITY, within=folder) as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            return file.read().split(b"\n")[:-1]
    except OSError:
        return []


def rows_after(step: int, lines: list[bytes]) -> Iterator[tuple[int, float, dict[str, Any]]]:
    """(step, ms, row) of each later step, the last first, up to the first line that is none."""
    for line in reversed(lines):
        try:
            row = parse_json(line)
            number, moment = int(row["step"]), datetime.fromisoformat(row["timestamp"]).timestamp() * 1000
        except (ValueError, KeyError, TypeError, OverflowError):
            return
        if not step < number < MANY:
            return
        yield number, moment, row


def values_of(row: Mapping[str, Any], algo: str) -> Iterator[tuple[str, float]]:
    """(canonical name, value) of each series of a row."""
    for field, value in row.items():
        name = FIELDS.get(field, field)
        if name not in METRICS or (algo == "ppo" and name == "tokens_per_second"):  # there of another meaning
            continue
        if value in WORDS or (isinstance(value, int | float) and abs(value) <= sys.float_info.max):
            yield name, float(value)
