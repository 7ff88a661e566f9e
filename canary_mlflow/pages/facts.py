"""What the tracking database says of runs, in a fixed number of statements whatever the number of runs."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from canary_mlflow.errors import StoreError
from canary_mlflow.tracking.session import NAME_TAG, PARENT_TAG
from canary_mlflow.tracking.watching import warnings_in
from gates.watch import WatchWarning

RUNS = sa.table("runs", *map(sa.column, ("run_uuid", "name", "status", "start_time", "end_time", "lifecycle_stage",
                                         "experiment_id", "artifact_uri")))  # fmt: skip
TAGS = sa.table("tags", *map(sa.column, ("run_uuid", "key", "value")))
PARAMS = sa.table("params", *map(sa.column, ("run_uuid", "key", "value")))
LATEST = sa.table("latest_metrics", *map(sa.column, ("run_uuid", "key", "value", "timestamp", "step", "is_nan")))
OPEN = ("RUNNING", "SCHEDULED")
SILENT = 120.0  # seconds without news after which a page says so


@dataclass(frozen=True, kw_only=True)
class Latest:
    """The last value of one series; `timestamp` in ms."""

    step: int
    value: float
    timestamp: int


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run as its row, tags and last values tell it; times in ms since 1970."""

    run_id: str
    name: str
    status: str
    started: int
    ended: int | None
    deleted: bool
    experiment: str
    artifacts: str
    tags: Mapping[str, str] = field(default_factory=dict)
    latest: Mapping[str, Latest] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.status in OPEN and not self.deleted

    @property
    def parent(self) -> str:
        """The session's id; empty for a run on its own."""
        return self.tags.get(PARENT_TAG, "")

    @property
    def step(self) -> int:
        """The last step that any series has; 0 before the first."""
        return max((one.step for one in self.latest.values()), default=0)

    @property
    def max_steps(self) -> int | None:
        """The optimizer steps that were planned, where the run says so."""
        text = self.tags.get("canary.max_steps", "")
        return int(text) if text.isdigit() and int(text) > 0 else None

    @property
    def news(self) -> int:
        """When it was last heard of."""
        return max((one.timestamp for one in self.latest.values()), default=self.started)

    @property
    def seed(self) -> str:
        """The seed as text."""
        return self.tags.get("canary.seed", "")

    @property
    def short(self) -> str:
        """What to call it beside its siblings."""
        return f"seed {self.seed}" if self.seed else self.name or self.run_id[:8]

    @property
    def level(self) -> str:
        """What the watch says: healthy, warned, critical, stopped; empty where nobody watched."""
        return self.tags.get("canary.watch.level", "")

    @property
    def warnings(self) -> tuple[WatchWarning, ...]:
        """What the watch said; the tag holds the most serious ones."""
        try:
            return warnings_in(self.tags)
        except StoreError:  # somebody else's tag
            return ()

    @property
    def warned(self) -> int:
        """How often the watch spoke."""
        text = self.tags.get("canary.watch.warnings", "")
        return max(int(text) if text.isdigit() else 0, len(self.warnings))

    @property
    def failure(self) -> str:
        """Why it broke off, in a sentence; empty where it did not."""
        kind, why = self.tags.get("canary.failure", ""), self.tags.get("canary.failure_reason", "")
        return ": ".join(part for part in (kind, why) if part)

    def seconds_left(self, now: int) -> float | None:
        """By the pace so far; None where nothing can be said."""
        if not self.running or self.max_steps is None or not 0 < self.step <= self.max_steps:
            return None
        elapsed = max(self.news - self.started, 1) / 1000
        return max(0.0, elapsed / self.step * (self.max_steps - self.step) - max(0, now - self.news) / 1000)

    def silent_for(self, now: int) -> float | None:
        """Seconds without news of a run that should be going on; None while that is no news itself."""
        silence = (now - self.news) / 1000
        return silence if self.running and silence > SILENT else None


def read_facts(
    connection: sa.Connection,
    run_ids: Sequence[str],
    *,
    tags: Iterable[str] | None = None,
    latest: Iterable[str] | None = None,
) -> dict[str, RunFacts]:
    """The runs that are there, by id, in the given order. `tags`, `latest`: only these keys (None: all)."""
    if not run_ids:
        return {}
    labels, values = read_tags(connection, run_ids, tags), read_latest(connection, run_ids, latest)
    found = {row.run_uuid: row for row in connection.execute(sa.select(RUNS).where(RUNS.c.run_uuid.in_(run_ids)))}
    return {
        run_id: RunFacts(
            run_id=run_id,
            name=row.name or labels[run_id].get(NAME_TAG, ""),
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
    """Last values by run and MLflow key."""
    found: dict[str, dict[str, Latest]] = defaultdict(dict)
    query = sa.select(LATEST).where(LATEST.c.run_uuid.in_(run_ids))
    if keys is not None:
        query = query.where(LATEST.c.key.in_(tuple(keys)))
    for run_id, key, value, timestamp, step, is_nan in connection.execute(query):
        infinite = abs(value) >= sys.float_info.max  # what SQL stores make of an infinity
        number = math.nan if is_nan else math.copysign(math.inf, value) if infinite else value
        found[run_id][key] = Latest(step=step, value=number, timestamp=timestamp)
    return found


def read_params(connection: sa.Connection, run_id: str, keys: Sequence[str]) -> dict[str, str]:
    """Some params of a run."""
    query = sa.select(PARAMS.c.key, PARAMS.c.value).where(PARAMS.c.run_uuid == run_id, PARAMS.c.key.in_(keys))
    return {key: value for key, value in connection.execute(query)}


def children_of(connection: sa.Connection, session_ids: Sequence[str]) -> dict[str, list[str]]:
    """The ids of the sessions' runs that are not deleted, oldest first."""
    found: dict[str, list[str]] = defaultdict(list)
    query = (
        sa.select(TAGS.c.value, TAGS.c.run_uuid)
        .join(RUNS, RUNS.c.run_uuid == TAGS.c.run_uuid)
        .where(TAGS.c.key == PARENT_TAG, TAGS.c.value.in_(session_ids), RUNS.c.lifecycle_stage == "active")
        .order_by(RUNS.c.start_time)
    )
    for parent, run_id in connection.execute(query):
        found[parent].append(run_id)
    return found
