"""A model's history: its champions, every verdict and act, and its metrics from version to version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchModel
from canary_mlflow.ledger import table
from canary_mlflow.ledger.policy_rows import said_by
from canary_mlflow.ledger.rows import Kind, Row
from canary_mlflow.pages.facts import RUNS, TAGS, read_facts
from canary_mlflow.pages.models import is_model, read_champions
from canary_mlflow.registry.versions import CHAMPION
from canary_mlflow.registry.workspaces import active_workspace
from canary_mlflow.reports.panels import label
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.stores.read_only import has_ledger, reading

BY_HAND = (Kind.BLESS, Kind.OVERRIDE, Kind.ROLLBACK, Kind.ADOPT, Kind.FACTS, Kind.REQUEST)
SHOWN = (Kind.FACTS, Kind.REQUEST)  # not about an alias, but still part of a decision about the champion
MOST = 500  # sessions searched for verdicts that are in no row


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A ledger row, parsed once. `facts`: empty if the row's text cannot be read."""

    row: Row
    facts: Mapping[str, Any]

    @property
    def time(self) -> str:
        """The row's time in ISO 8601; '' if it has none."""
        return str(self.facts.get("time", ""))

    @property
    def by_hand(self) -> bool:
        """Whether a person decided."""
        return self.row.kind in BY_HAND

    @property
    def judged(self) -> bool:
        """Whether the row holds a verdict."""
        return isinstance(self.facts.get("verdict"), dict)


@dataclass(frozen=True, kw_only=True)
class Reign:
    """A version's time as champion. `until`: None if it still is."""

    entry: Entry
    until: Entry | None


@dataclass(frozen=True, kw_only=True)
class Trend:
    """One metric over the verdicts of a model: (row, version, candidate's value, outcome of the check)."""

    name: str
    label: str
    unit: str
    points: Sequence[tuple[int, int, float, str]]


@dataclass(frozen=True, kw_only=True)
class History:
    """Everything about one model. `guarded`: whether there is a ledger."""

    model: str
    champion: int | None
    guarded: bool
    entries: Sequence[Entry] = ()
    reigns: Sequence[Reign] = ()
    overrides: Sequence[Entry] = ()
    trends: Sequence[Trend] = field(default=())

    @property
    def verdicts(self) -> Sequence[Entry]:
        """The rows that hold a verdict, oldest first."""
        return [entry for entry in self.entries[::-1] if entry.judged]

    @property
    def made_by_hand(self) -> Sequence[int]:
        """The versions that a person made champion."""
        return sorted({reign.entry.row.version for reign in self.reigns if reign.entry.by_hand})


def read_history(registry: str, model: str) -> History:
    """The history of a model. Raises NoSuchModel and StoreError."""
    with reading(registry) as connection:
        place = active_workspace()
        if not is_model(connection, model):
            raise NoSuchModel(
                f"model {model[:256]!r}: not in the registry; expected a registered model; see the overview"
            )
        champion = dict(read_champions(connection, model)).get(model)
        guarded = has_ledger(connection)
        rows = list(table.read(connection, model, place)) if guarded else []
    entries = [Entry(row=row, facts=said_by(row)) for row in rows if row.alias == CHAMPION or row.kind in SHOWN]
    moves = [entry for entry in entries if entry.row.moves and entry.row.alias == CHAMPION]
    reigns = [Reign(entry=entry, until=after) for entry, after in zip_longest(moves, moves[1:])]
    return History(
        model=model,
        champion=champion,
        guarded=guarded,
        entries=entries[::-1],
        reigns=reigns[::-1],
        overrides=[entry for entry in entries[::-1] if entry.by_hand],
        trends=trends_of(entries),
    )


def trends_of(entries: Sequence[Entry]) -> list[Trend]:
    """The candidate's value of each judged metric in each verdict, as signed."""
    points: dict[str, list[tuple[int, int, float, str]]] = {}
    units: dict[str, str] = {}
    for entry in entries:
        for check in entry.facts["verdict"].get("checks", ()) if entry.judged else ():
            evidence = check.get("evidence") or {}
            value = evidence.get("candidate")
            if value is None:
                continue
            name = str(check.get("metric", ""))
            points.setdefault(name, []).append((entry.row.seq, entry.row.version, float(value), str(check["outcome"])))
            units[name] = str(evidence.get("unit", ""))
    return [Trend(name=name, label=label(name), unit=units[name], points=found) for name, found in points.items()]


def without_row(tracking: str, history: History) -> list[RunFacts]:
    """Judged sessions of the model that left no version and so have no row; newest first, among the last MOST. Raises
    StoreError."""
    known = {entry.facts.get("session") for entry in history.entries}
    mine = sa.select(TAGS.c.run_uuid).where(TAGS.c.key == tags.MODEL_NAME, TAGS.c.value == history.model)
    query = sa.select(RUNS.c.run_uuid).where(RUNS.c.run_uuid.in_(mine), RUNS.c.lifecycle_stage == "active")
    keys = (tags.ROLE, tags.VERDICT, tags.VERDICT_REASON)
    with reading(tracking) as connection:
        ids = list(connection.execute(query.order_by(RUNS.c.start_time.desc()).limit(MOST)).scalars())
        found = read_facts(connection, [one for one in ids if one not in known], tags=keys, latest=())
    return [one for one in found.values() if one.tags.get(tags.ROLE) == "session" and one.tags.get(tags.VERDICT)]
