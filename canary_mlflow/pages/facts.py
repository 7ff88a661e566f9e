"""What the tracking database says about runs, in a fixed number of statements for any number of runs."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa

from canary_mlflow.errors import NoSuchRun
from canary_mlflow.tags import PARENT_RUN, RUN_NAME
from canary_mlflow.tracking.reading.facts import Latest, RunFacts
from canary_mlflow.tracking.stores.session import deleted

RUNS = sa.table("runs", *map(sa.column, ("run_uuid", "name", "status", "start_time", "end_time", "lifecycle_stage",
                                         "experiment_id", "artifact_uri")))  # fmt: skip
TAGS = sa.table("tags", *map(sa.column, ("run_uuid", "key", "value")))
EXPERIMENTS = sa.table("experiments", sa.column("experiment_id"))
PARAMS = sa.table("params", *map(sa.column, ("run_uuid", "key", "value")))
NEAR = 4000  # runs among which a session's are searched
CLOCKS = 600_000  # ms that the clocks of two hosts may differ by
SHORTEST = 6  # characters of an abbreviated id
LATEST = sa.table("latest_metrics", *map(sa.column, ("run_uuid", "key", "value", "timestamp", "step", "is_nan")))


def read_facts(
    connection: sa.Connection,
    run_ids: Sequence[str],
    *,
    tags: Iterable[str] | None = None,
    latest: Iterable[str] | None = None,
) -> dict[str, RunFacts]:
    """The runs that exist, by id, in the given order. `tags`, `latest`: only these keys (None: all)."""
    if not run_ids:
        return {}
    labels, values = read_tags(connection, run_ids, tags), read_latest(connection, run_ids, latest)
    found = {row.run_uuid: row for row in connection.execute(sa.select(RUNS).where(RUNS.c.run_uuid.in_(run_ids)))}
    return {
        run_id: RunFacts(
            run_id=run_id,
            name=row.name or labels[run_id].get(RUN_NAME, ""),
            status=row.status,
            started=row.start_time or 0,
            ended=row.end_time,
            deleted=row.lifecycle_stage != "active",
            experiment=str(row.experiment_id),
            artifacts=row.artifact_uri or "",
            tags=labels[run_id],
            latest=values[run_id],
        )
        for run_id in run_ids
        if (row := found.get(run_id)) is not None
    }


def find_run(connection: sa.Connection, run_id: str) -> RunFacts:
    """The run with this id. Raises NoSuchRun if there is none or it is deleted."""
    run = read_facts(connection, [run_id]).get(run_id)
    if run is None:
        raise NoSuchRun(f"run {run_id[:64]!r}: not in this store; expected the id of a run; see the overview")
    if run.deleted:
        raise deleted(run_id)
    return run


def read_tags(
    connection: sa.Connection, run_ids: Sequence[str], keys: Iterable[str] | None
) -> dict[str, dict[str, str]]:
    """Tags by run."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    query = sa.select(TAGS).where(TAGS.c.run_uuid.in_(run_ids))
    if keys is not None:
        query = query.where(TAGS.c.key.in_(tuple(keys)))
    for run_id, key, value in connection.execute(query):
        found[run_id][key] = value or ""
    return found


def read_latest(
    connection: sa.Connection, run_ids: Sequence[str], keys: Iterable[str] | None
) -> dict[str, dict[str, Latest]]:
    """Latest values by run and MLflow key."""
    found: dict[str, dict[str, Latest]] = defaultdict(dict)
    query = sa.select(LATEST).where(LATEST.c.run_uuid.in_(run_ids))
    if keys is not None:
        query = query.where(LATEST.c.key.in_(tuple(keys)))
    for run_id, key, value, timestamp, step, is_nan in connection.execute(query):
        infinite = abs(value) >= sys.float_info.max  # how SQL stores save an infinity
        number = math.nan if is_nan else math.copysign(math.inf, value) if infinite else value
        found[run_id][key] = Latest(step=step, value=number, timestamp=timestamp)
    return found


def read_params(connection: sa.Connection, run_id: str, keys: Sequence[str]) -> dict[str, str]:
    """The params of a run with these keys."""
    query = sa.select(PARAMS.c.key, PARAMS.c.value).where(PARAMS.c.run_uuid == run_id, PARAMS.c.key.in_(keys))
    return {key: value for key, value in connection.execute(query)}


def read_all_params(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
    """Every param of the runs, by run."""
    found: dict[str, dict[str, str]] = {run_id: {} for run_id in run_ids}
    query = sa.select(PARAMS.c.run_uuid, PARAMS.c.key, PARAMS.c.value).where(PARAMS.c.run_uuid.in_(run_ids))
    for run_id, key, value in connection.execute(query):
        found[run_id][key] = value
    return found


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


def near_in_time(connection: sa.Connection, session_ids: Sequence[str]) -> list[str] | None:
    """The ids of the runs that started during one of the sessions, oldest first, allowing for clocks that differ; None
    if there are too many."""
    times = sa.select(RUNS.c.start_time, RUNS.c.end_time).where(RUNS.c.run_uuid.in_(session_ids))
    spans = [(row.start_time, row.end_time) for row in connection.execute(times)]
    if not spans or any(start is None for start, _ in spans):
        return None
    started = RUNS.c.start_time >= min(start for start, _ in spans) - CLOCKS
    query = sa.select(RUNS.c.run_uuid).where(started, RUNS.c.lifecycle_stage == "active")
    if all(end is not None for _, end in spans):
        query = query.where(RUNS.c.start_time <= max(end for _, end in spans) + CLOCKS)
    found = list(connection.execute(query.order_by(RUNS.c.start_time).limit(NEAR + 1)).scalars())
    return found if len(found) <= NEAR else None


def children_of(connection: sa.Connection, session_ids: Sequence[str]) -> dict[str, list[str]]:
    """The ids of each session's runs that are not deleted, oldest first. As for the gate, only runs in the session's
    own experiment count, because any run may name any session as its parent.

    The store has no index from a session to its runs. So the search covers the runs that started during it, or all
    runs if those are too many.
    """
    found: dict[str, list[str]] = defaultdict(list)
    near = near_in_time(connection, session_ids)
    if near is not None:
        parents = read_tags(connection, near, (PARENT_RUN,)) if near else {}
        wanted = set(session_ids)
        for run_id in near:
            if (parent := parents.get(run_id, {}).get(PARENT_RUN, "")) in wanted:
                found[parent].append(run_id)
        return at_home(connection, found)
    query = (
        sa.select(TAGS.c.value, TAGS.c.run_uuid)
        .join(RUNS, RUNS.c.run_uuid == TAGS.c.run_uuid)
        .where(TAGS.c.key == PARENT_RUN, TAGS.c.value.in_(session_ids), RUNS.c.lifecycle_stage == "active")
        .order_by(RUNS.c.start_time)
    )
    for parent, run_id in connection.execute(query):
        found[parent].append(run_id)
    return at_home(connection, found)


def at_home(connection: sa.Connection, children: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The runs of each session that are in its experiment."""
    ids = [*children, *(run_id for runs in children.values() for run_id in runs)]
    query = sa.select(RUNS.c.run_uuid, RUNS.c.experiment_id).where(RUNS.c.run_uuid.in_(ids))
    home = {run_id: number for run_id, number in connection.execute(query)} if ids else {}
    kept = {parent: [one for one in runs if home.get(one) == home.get(parent)] for parent, runs in children.items()}
    return defaultdict(list, kept)
