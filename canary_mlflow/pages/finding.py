"""Finds the page for what is in an address: the id of a run or a session, a version, an alias, or a name."""

from __future__ import annotations

from dataclasses import dataclass

from canary_mlflow.errors import NoSuchRun, NoSuchVersion
from canary_mlflow.pages.models import is_model, session_of, version_behind
from canary_mlflow.pages.requests import registry_database, runs_database
from canary_mlflow.tracking.reading.database import find_run, named_like, read_facts
from canary_mlflow.tracking.reading.facts import RunFacts, count

LONGEST = 300  # characters


@dataclass(frozen=True, kw_only=True)
class Place:
    """A model, or a session (or a run without one). `run`: the run of the session that was asked for."""

    model: str = ""
    head: RunFacts | None = None
    run: RunFacts | None = None


def find(word: str) -> Place:
    """The place that a word names. Raises NoSuchRun, NoSuchVersion."""
    name = word.removeprefix("models:/")
    if read_facts(runs_database(), [name], tags=()):
        return place_of(name)
    if is_model(registry_database(), name):
        return Place(model=name)
    if found := version_in(name) or named_like(runs_database(), name):
        return place_of(found)
    raise NoSuchRun(
        f"{word[:LONGEST]!r}: no run, session, version, model or name of one in this store; expected an id, "
        "MODEL/VERSION, MODEL@champion or a name; see the overview"
    )


def version_in(name: str) -> str:
    """The session of MODEL/VERSION or MODEL@ALIAS; '' for any other word. Raises NoSuchVersion if there is none."""
    connection = registry_database()
    model, at, alias = name.rpartition("@" if "@" in name else "/")
    if not at or not is_model(connection, model):
        return ""
    version = version_behind(connection, model, alias) if at == "@" else count(alias)
    session = session_of(connection, model, version) if version else ""
    if not session:
        raise NoSuchVersion(f"{name[:LONGEST]!r}: no such version with a session; expected one; see the model's page")
    return session


def place_of(run_id: str) -> Place:
    """The session that a run belongs to, or the run itself."""
    run = find_run(runs_database(), run_id)
    parent = read_facts(runs_database(), [run.parent], latest=None).get(run.parent) if run.parent else None
    if parent is None or parent.deleted or not parent.parental:
        return Place(head=run)
    return Place(head=parent, run=run)
