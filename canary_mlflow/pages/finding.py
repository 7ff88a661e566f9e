"""Finds the page for what is in an address: the id of a run or a session, a version, an alias, or a name."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from canary_mlflow.errors import NoSuchRun, NoSuchVersion
from canary_mlflow.pages.facts import find_run, named_like, read_facts
from canary_mlflow.pages.models import is_model, session_of, version_behind
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.reading.numbers import count
from canary_mlflow.tracking.stores.read_only import reading

MOST = 300  # characters


@dataclass(frozen=True, kw_only=True)
class Place:
    """A model, or a session (or a run without one). `run`: the run of the session that was asked for."""

    model: str = ""
    head: RunFacts | None = None
    run: RunFacts | None = None


def find(tracking: str, registry: str, word: str) -> Place:
    """The place that a word names. Raises NoSuchRun, NoSuchVersion, StoreError."""
    name = word.removeprefix("models:/")
    with reading(tracking) as connection:
        if read_facts(connection, [name], tags=(), latest=()):
            return place_of(connection, name)
    with reading(registry) as connection:
        if is_model(connection, name):
            return Place(model=name)
        session = version_in(connection, name)
    with reading(tracking) as connection:
        if found := session or named_like(connection, name):
            return place_of(connection, found)
    raise NoSuchRun(
        f"{word[:MOST]!r}: no run, session, version, model or name of one in this store; expected an id, "
        "MODEL/VERSION, MODEL@champion or a name; see the overview"
    )


def version_in(connection: sa.Connection, name: str) -> str:
    """The session of MODEL/VERSION or MODEL@ALIAS; '' for any other word. Raises NoSuchVersion if there is none."""
    model, at, alias = name.rpartition("@")
    if not at:
        model, at, alias = name.rpartition("/")
    if not at or not is_model(connection, model):
        return ""
    version = version_behind(connection, model, alias) if "@" in name else count(alias)
    session = session_of(connection, model, version) if version else ""
    if not session:
        raise NoSuchVersion(f"{name[:MOST]!r}: no such version with a session; expected one; see the model's page")
    return session


def place_of(connection: sa.Connection, run_id: str) -> Place:
    """The session that a run belongs to, or the run itself."""
    run = find_run(connection, run_id)
    parent = read_facts(connection, [run.parent]).get(run.parent) if run.parent else None
    if parent is None or parent.deleted or not parent.parental:
        return Place(head=run)
    return Place(head=parent, run=run)
