"""The first page: current warnings, the wall of all models, what is running, what was judged last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from canary_mlflow import tags
from canary_mlflow.ledger import table
from canary_mlflow.mlflow_internals import active_workspace
from canary_mlflow.pages.index import SHOWN
from canary_mlflow.pages.models import with_words
from canary_mlflow.pages.requests import readers, registry_database, rendered, runs_database
from canary_mlflow.pages.wall import HEIGHT, LAST, WIDTH, WallRow, read_wall
from canary_mlflow.tracking.reading.database import children_of, read_facts
from canary_mlflow.tracking.reading.facts import OPEN, RunFacts, count
from canary_mlflow.tracking.stores.read_only import RUNS, has_ledger

RECENT = 20  # finished sessions shown
DENSE = 2 * RECENT  # running sessions shown, those with warnings first
NEWEST, AT_ONCE = 2000, 200  # runs searched for them
TAG_KEYS = (*SHOWN, tags.WATCH_FOUND, tags.FAULT, tags.MAX_STEPS, tags.CELL_NAME)
ORDER_KEYS = (tags.ROLE, tags.PARENT_RUN, tags.WATCH_LEVEL, tags.WATCH_WARNINGS, tags.WATCHED)
STEP_KEYS = ("perf/step_time", "stability/loss", "stability/learning_rate")  # one of them moves with every step


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session with its runs, or a run without a session (it is `head`, and alone in `runs`).

    `row`: the ledger row that judged it; None if there is none, as for a session that left no version.
    """

    head: RunFacts
    runs: Sequence[RunFacts]
    row: int | None = None

    @property
    def running(self) -> bool:
        """Whether anything in it has not ended."""
        return self.head.running or any(run.running for run in self.runs)

    @property
    def word(self) -> str:
        """The verdict in a word; '' if there is none."""
        return self.head.tags.get(tags.VERDICT, "")

    @property
    def model(self) -> str:
        """The registered model; '' for a run without a session."""
        return self.head.tags.get(tags.MODEL_NAME, "")

    @property
    def version(self) -> int:
        """The version that it left; 0 if it left none."""
        return count(self.head.tags.get(tags.VERSION, ""))

    @property
    def warned(self) -> int:
        """The number of warnings of all its runs."""
        return sum(run.warned for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Everything that the first page shows."""

    wall: Sequence[WallRow]
    running: Sequence[Session]
    more_running: int
    recent: Sequence[Session]
    guarded: bool

    @property
    def warning(self) -> Sequence[RunFacts]:
        """The runs that have not ended and have warnings."""
        return [run for session in self.running for run in session.runs if run.running and run.warned]


def overview() -> str:
    """The first page; with ?screen=1 larger, and only what somebody wants to see from afar."""
    from flask import request

    may_read, connection = readers(), runs_database()
    going = [one for one in read_running(connection) if may_read.experiment(one.experiment)]
    newest_ended = newest(connection, RUNS.c.status.not_in(OPEN))
    ended = [one for one in read_recent(connection, newest_ended) if may_read.experiment(one.experiment)]
    ids = [one.run_id for one in going[:DENSE]]
    shown = list(read_facts(connection, ids, tags=TAG_KEYS, latest=STEP_KEYS).values())
    both = grouped(connection, [*shown, *ended])
    running, recent = both[: len(shown)], both[len(shown) :]
    registry = registry_database()
    guarded = has_ledger(registry)
    names = sorted({one.model for one in recent if one.model})
    rows = table.numbers_of_versions(registry, active_workspace(), names) if guarded and names else {}
    heads = with_words(registry, [one.head for one in recent])
    judged = [replace(one, head=heads[one.head.run_id], row=rows.get((one.model, one.version))) for one in recent]
    page = Overview(
        wall=read_wall(registry, connection, newest_ended),
        running=running,
        more_running=len(going) - len(shown),
        recent=judged,
        guarded=guarded,
    )
    screen = request.args.get("screen") == "1"
    return rendered("canary/overview.html", page=page, screen=screen, last=LAST, width=WIDTH, height=HEIGHT)


def read_running(connection: sa.Connection) -> list[RunFacts]:
    """The sessions, and runs without one, that have not ended: first those with warnings, then the newest."""
    found = read_facts(connection, newest(connection, RUNS.c.status.in_(OPEN)), tags=ORDER_KEYS)
    ours = {run_id: run for run_id, run in found.items() if run.parental or run.tags.get(tags.ROLE) == "run"}
    ours |= parents_of(connection, ours)
    warned = {run.parent or run.run_id for run in ours.values() if run.warned}
    return sorted(heads_of(ours), key=lambda run: (run.run_id not in warned, -run.started))


def read_recent(connection: sa.Connection, ended: Sequence[str]) -> list[RunFacts]:
    """The last sessions, and runs without one, of the newest runs that have ended."""
    heads: list[RunFacts] = []
    for start in range(0, len(ended), AT_ONCE):
        if len(heads) >= RECENT:
            break
        found = read_facts(connection, ended[start : start + AT_ONCE], tags=(tags.ROLE, tags.PARENT_RUN))
        ours = {run_id: run for run_id, run in found.items() if run.parental or run.tags.get(tags.ROLE) == "run"}
        heads += [run for run in heads_of(ours | parents_of(connection, ours)) if run.run_id in ours]
    ids = [run.run_id for run in heads[:RECENT]]
    return list(read_facts(connection, ids, tags=TAG_KEYS, latest=STEP_KEYS).values())


def newest(connection: sa.Connection, which: sa.ColumnElement[bool]) -> list[str]:
    """The ids of the newest runs that are not deleted, newest first."""
    query = sa.select(RUNS.c.run_uuid).where(which, RUNS.c.lifecycle_stage == "active")
    return list(connection.execute(query.order_by(RUNS.c.start_time.desc()).limit(NEWEST)).scalars())


def parents_of(connection: sa.Connection, runs: Mapping[str, RunFacts]) -> dict[str, RunFacts]:
    """The runs' parents that are not among the runs, by id."""
    missing = {run.parent for run in runs.values() if run.parent} - set(runs)
    return read_facts(connection, sorted(missing), tags=TAG_KEYS)


def heads_of(runs: Mapping[str, RunFacts]) -> list[RunFacts]:
    """The sessions, and the runs that belong to none."""
    sessions = {run_id for run_id, run in runs.items() if run.parental}
    return [run for run in runs.values() if run.parental or (tags.ROLE in run.tags and run.parent not in sessions)]


def grouped(connection: sa.Connection, heads: Sequence[RunFacts]) -> list[Session]:
    """The sessions with their runs."""
    children = children_of(connection, [run.run_id for run in heads if run.parental])
    every = [run_id for ids in children.values() for run_id in ids]
    runs = read_facts(connection, every, tags=TAG_KEYS, latest=STEP_KEYS)
    return [
        Session(head=head, runs=[runs[one] for one in children[head.run_id]] if head.parental else [head])
        for head in heads
    ]
