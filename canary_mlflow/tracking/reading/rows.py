"""Reads runs straight from MLflow's tables, as a promotion does before it believes a verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import sqlalchemy as sa

from canary_mlflow.errors import StoreError, one_line
from canary_mlflow.tracking.reading.histories import run_from
from canary_mlflow.tracking.reading.points import points_over
from gates.model.records import Run

TAGS = sa.table("tags", sa.column("run_uuid"), sa.column("key"), sa.column("value"))
PARAMS = sa.table("params", sa.column("run_uuid"), sa.column("key"), sa.column("value"))
LATEST = sa.table("latest_metrics", sa.column("run_uuid"), sa.column("key"))
RUNS = sa.table("runs", sa.column("run_uuid"), sa.column("lifecycle_stage"))
Pairs = dict[str, dict[str, str]]  # run id → key → value


def read_runs_from(uri: str, run_ids: Sequence[str]) -> tuple[Run, ...]:
    """The runs that the tracking database at `uri` still holds, as `histories.read_runs` gives them.

    Raises StoreError for a database that cannot be read.
    """
    if not run_ids:
        return ()
    try:
        with engine(uri).connect() as connection:
            there = sa.select(RUNS.c.run_uuid).where(RUNS.c.run_uuid.in_(run_ids), RUNS.c.lifecycle_stage == "active")
            found = set(connection.execute(there).scalars())
            tags, params = pairs_in(connection, run_ids)
            keys: dict[str, list[str]] = defaultdict(list)
            for run_id, key in connection.execute(sa.select(LATEST).where(LATEST.c.run_uuid.in_(run_ids))):
                keys[run_id].append(key)
            points = points_over(connection, keys)
    except sa.exc.SQLAlchemyError as error:
        raise StoreError(f"tracking store: {one_line(error)}; expected MLflow's tables of runs") from error
    return tuple(
        run_from(run_id, tags[run_id], sorted(keys[run_id]), points, params[run_id])
        for run_id in run_ids
        if run_id in found
    )


def pairs_in(connection: sa.Connection, run_ids: Sequence[str]) -> tuple[Pairs, Pairs]:
    """The runs' tags and params, by run: in one query, because each round trip to a server costs more than the
    query."""
    both = sa.union_all(
        *(
            sa.select(sa.literal_column(str(at)), table).where(table.c.run_uuid.in_(run_ids))
            for at, table in enumerate((TAGS, PARAMS))
        )
    )
    found: tuple[Pairs, Pairs] = defaultdict(dict), defaultdict(dict)
    for at, run_id, key, value in connection.execute(both):
        found[at][run_id][key] = value
    return found


@lru_cache(maxsize=8)
def engine(uri: str) -> sa.Engine:
    """One engine per database and process."""
    return sa.create_engine(uri, pool_pre_ping=True)
