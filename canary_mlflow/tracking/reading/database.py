"""Reads runs straight from the database that MLflow keeps them in, in a fixed number of statements for any number of
runs; and points with one for each run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import sqlalchemy as sa

from canary_mlflow.errors import NoSuchRun, StoreError, one_line
from canary_mlflow.gates.model.records import Run
from canary_mlflow.tags import PARENT_RUN, RUN_NAME
from canary_mlflow.tracking.describing.compact import expanded, params_in
from canary_mlflow.tracking.reading.facts import Latest, RunFacts
from canary_mlflow.tracking.reading.records import NONE, Points, run_from, with_infinities
from canary_mlflow.tracking.stores.read_only import LATEST, PARAMS, POINTS, RUNS, TAGS, engine
from canary_mlflow.tracking.stores.session import deleted

Keys = Mapping[str, Sequence[str]]  # run id → MLflow keys
Found = dict[str, dict[str, Points]]  # run id → MLflow key → points

ROWS_AT_ONCE = 100_000  # as Python objects, which are ten times as large as the arrays that are kept
CLOCKS = 600_000  # ms that the clocks of two hosts may differ by
SHORTEST = 6  # characters of an abbreviated id
KEY = itemgetter(0)


def read_runs_from(uri: str, run_ids: Sequence[str]) -> tuple[Run, ...]:
    """The runs that the tracking database at `uri` still holds, as `histories.read_runs` gives them, in the given
    order. Raises StoreError for a database that cannot be read."""
    try:
        with engine(uri).connect() as connection:
            return tuple(runs_over(connection, run_ids).values())
    except sa.exc.SQLAlchemyError as error:
        raise StoreError(f"tracking store: {one_line(error)}; expected MLflow's tables of runs") from error


def runs_over(connection: sa.Connection, run_ids: Sequence[str], *, series: bool = True) -> dict[str, Run]:
    """The runs that are not deleted, by id, in the given order; without `series`, only what they are."""
    facts = read_facts(connection, run_ids, params=None, latest=None if series else ())
    alive = {run_id: one for run_id, one in facts.items() if not one.deleted}
    points = points_over(connection, {run_id: sorted(one.latest) for run_id, one in alive.items()})
    return {run_id: run_from(run_id, one.tags, one.params, points[run_id]) for run_id, one in alive.items()}


# ---- what a run is ---------------------------------------------------------------------------------------------------


def read_facts(
    connection: sa.Connection,
    run_ids: Sequence[str],
    *,
    tags: Iterable[str] | None = None,
    latest: Iterable[str] | None = (),
    params: Iterable[str] | None = (),
) -> dict[str, RunFacts]:
    """The runs that exist, by id, in the given order. `tags`, `latest`, `params`: only these keys (None: all)."""
    if not run_ids:
        return {}
    wanted = None if params is None else set(params)
    said, told = read_pairs(connection, run_ids, tags, wanted)
    said |= {run_id: expanded(found) for run_id, found in said.items()}
    values = read_latest(connection, run_ids, latest)
    found = {row.run_uuid: row for row in connection.execute(sa.select(RUNS).where(RUNS.c.run_uuid.in_(run_ids)))}
    return {
        run_id: RunFacts(
            run_id=run_id,
            name=row.name or said[run_id].get(RUN_NAME, ""),
            status=row.status,
            started=row.start_time or 0,
            ended=row.end_time,
            deleted=row.lifecycle_stage != "active",
            experiment=str(row.experiment_id),
            artifacts=row.artifact_uri or "",
            tags=said[run_id],
            latest=values[run_id],
            params={**params_in(said[run_id], wanted), **told[run_id]},
        )
        for run_id in run_ids
        if (row := found.get(run_id)) is not None
    }


def read_pairs(
    connection: sa.Connection, run_ids: Sequence[str], tags: Iterable[str] | None, params: Iterable[str] | None = ()
) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """Tags and params with these keys (None: all), by run. In one query, because each round trip to a server costs
    more than the query."""
    parts = []
    for at, (table, keys) in enumerate(((TAGS, tags), (PARAMS, params))):
        query = sa.select(sa.literal_column(str(at)), table).where(table.c.run_uuid.in_(run_ids))
        if keys is None or (keys := tuple(keys)):
            parts.append(query if keys is None else query.where(table.c.key.in_(keys)))
    found: tuple[dict[str, dict[str, str]], ...] = defaultdict(dict), defaultdict(dict)
    for at, run_id, key, value in connection.execute(sa.union_all(*parts)) if parts else ():
        found[at][run_id][key] = value or ""
    return found[0], found[1]


def read_latest(
    connection: sa.Connection, run_ids: Sequence[str], keys: Iterable[str] | None
) -> dict[str, dict[str, Latest]]:
    """Latest values with these MLflow keys (None: all), by run."""
    found: dict[str, dict[str, Latest]] = defaultdict(dict)
    query = sa.select(LATEST).where(LATEST.c.run_uuid.in_(run_ids))
    if keys is not None:
        if not (keys := tuple(keys)):
            return found
        query = query.where(LATEST.c.key.in_(keys))
    for run_id, key, step, timestamp, value, is_nan in connection.execute(query):
        number = math.nan if is_nan else float(with_infinities(np.array(value)))
        found[run_id][key] = Latest(step=step, value=number, timestamp=timestamp)
    return found


def find_run(connection: sa.Connection, run_id: str, *, params: Iterable[str] | None = ()) -> RunFacts:
    """The run with this id. `params`: as in `read_facts`. Raises NoSuchRun if there is none or it is deleted."""
    run = read_facts(connection, [run_id], latest=None, params=params).get(run_id)
    if run is None:
        raise NoSuchRun(f"run {run_id[:64]!r}: not in this store; expected the id of a run; see the overview")
    if run.deleted:
        raise deleted(run_id)
    return run


def named_like(connection: sa.Connection, word: str) -> str:
    """The id of the newest run with that name, or of the only run whose id begins with it; '' for none."""
    alive = RUNS.c.lifecycle_stage == "active"
    newest = sa.select(RUNS.c.run_uuid).where(RUNS.c.name == word, alive).order_by(RUNS.c.start_time.desc()).limit(1)
    if (found := connection.execute(newest).scalars().first()) is not None:
        return str(found)
    if len(word) < SHORTEST or not word.isalnum():
        return ""
    begins = sa.select(RUNS.c.run_uuid).where(RUNS.c.run_uuid.like(f"{word}%"), alive).limit(2)
    ids = connection.execute(begins).scalars().all()
    return str(ids[0]) if len(ids) == 1 else ""


# ---- the runs of a session -------------------------------------------------------------------------------------------


def children_of(connection: sa.Connection, session_ids: Sequence[str]) -> dict[str, list[str]]:
    """The ids of each session's runs that are not deleted, oldest first. As for the gate, only runs in the session's
    own experiment count, because any run may name any session as its parent."""
    if not session_ids:
        return {}
    home = RUNS.alias("home")
    query = (
        sa.select(TAGS.c.value, TAGS.c.run_uuid)
        .join(RUNS, RUNS.c.run_uuid == TAGS.c.run_uuid)
        .join(home, sa.and_(home.c.run_uuid == TAGS.c.value, home.c.experiment_id == RUNS.c.experiment_id))
        .where(TAGS.c.key == PARENT_RUN, TAGS.c.value.in_(session_ids))
        .where(TAGS.c.run_uuid.in_(begun_during(connection, session_ids)))
        .order_by(RUNS.c.start_time)
    )
    found: dict[str, list[str]] = {session_id: [] for session_id in session_ids}
    for parent, run_id in connection.execute(query):
        found[parent].append(run_id)
    return found


def begun_during(connection: sa.Connection, session_ids: Sequence[str]) -> sa.Select[Any]:
    """A query of the runs that are not deleted and began during one of the sessions, allowing for clocks that differ:
    few, and the store has no index from a session to its runs."""
    times = sa.select(RUNS.c.start_time, RUNS.c.end_time).where(RUNS.c.run_uuid.in_(session_ids))
    spans = connection.execute(times).all()
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    query = sa.select(RUNS.c.run_uuid).where(RUNS.c.lifecycle_stage == "active")
    if None not in starts:
        query = query.where(RUNS.c.start_time >= min(starts, default=0) - CLOCKS)
    if None not in ends:
        query = query.where(RUNS.c.start_time <= max(ends, default=0) + CLOCKS)
    return query


# ---- points ----------------------------------------------------------------------------------------------------------


def points_over(
    connection: sa.Connection,
    keys: Keys,
    after: int | None = None,
    until: int | None = None,
    at: Sequence[int] | None = None,
) -> Found:
    """The points of the runs' series by step, with one SELECT per run and without an object per point.

    `after`: only later steps. `until`: no later steps than this. `at`: only these steps. The ORDER BY makes SQLite use
    MLflow's index over run, key and step: by itself it uses the primary key, which begins with the metric, and reads
    that metric of every run in the store.
    """
    table = POINTS.c
    mine = (table.run_uuid == sa.bindparam("run"), table.key.in_(sa.bindparam("keys", expanding=True)))
    query = sa.select(table.key, table.step, table.timestamp, table.value, table.is_nan).where(*mine)
    query = query.order_by(table.key, table.step)
    if after is not None:
        query = query.where(table.step > after)
    if until is not None:
        query = query.where(table.step <= until)
    if at is not None:
        query = query.where(table.step.in_(at))
    found = {run_id: dict.fromkeys(names, NONE) for run_id, names in keys.items()}
    for run_id, names in keys.items():
        if not names:
            continue
        parts: dict[str, list[Points]] = defaultdict(list)
        with connection.execute(query, {"run": run_id, "keys": names}) as result:
            cursor: Any = result.cursor  # SQLAlchemy's Row objects would double the cost
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                for key, points in _by_key(rows):
                    parts[key].append(points)
        found[run_id] |= {key: some[0] if len(some) == 1 else np.concatenate(some) for key, some in parts.items()}
    return found


def _by_key(rows: list[tuple[Any, ...]]) -> Iterator[tuple[str, Points]]:
    """The points of each key, in the order of the rows."""
    rows.sort(key=KEY)  # stable; a database's collation may take two keys for one
    points = np.empty((len(rows), 3))
    for at in range(3):
        points[:, at] = np.fromiter(map(itemgetter(at + 1), rows), np.float64, len(rows))
    points[np.fromiter(map(itemgetter(4), rows), np.bool_, len(rows)), 2] = math.nan
    end = 0
    for key, count in Counter(map(KEY, rows)).items():
        start, end = end, end + count
        yield key, points[start:end]
