"""A model through time: its champions, every verdict and act, and how its metrics went from version to version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import zip_longest
from typing import Any

from canary_mlflow.errors import NoSuchModel
from canary_mlflow.ledger import table
from canary_mlflow.ledger.rows import Kind, Row
from canary_mlflow.pages.models import is_model, read_champions
from canary_mlflow.registry.workspaces import active_workspace
from canary_mlflow.reports.panels import label
from canary_mlflow.tracking.read_only import has_ledger, reading

BY_HAND = (Kind.BLESS, Kind.OVERRIDE, Kind.ROLLBACK, Kind.ADOPT)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A ledger row, read once. `facts` is empty where its text is none."""

    row: Row
    facts: Mapping[str, Any]

    @property
    def time(self) -> str:
        """ISO 8601; empty where the row does not say."""
        return str(self.facts.get("time", ""))

    @property
    def seconds(self) -> float | None:
        """Since 1970."""
        try:
            return datetime.fromisoformat(self.time).timestamp()
        except ValueError:
            return None

    @property
    def by_hand(self) -> bool:
        """Whether a person decided."""
        return self.row.kind in BY_HAND


@dataclass(frozen=True, kw_only=True)
class Reign:
    """A version while it was champion; `until` None for the one that still is."""

    entry: Entry
    until: Entry | None


@dataclass(frozen=True, kw_only=True)
class Trend:
    """One metric over the verdicts of a model: (seconds, version, candidate's value, outcome of the check)."""

    name: str
    label: str
    unit: str
    points: Sequence[tuple[float, int, float, str]]


@dataclass(frozen=True, kw_only=True)
class History:
    """Everything about one model. `guarded`: there is a ledger at all."""

    model: str
    champion: int | None
    guarded: bool
    entries: Sequence[Entry] = ()
    reigns: Sequence[Reign] = ()
    overrides: Sequence[Entry] = ()
    trends: Sequence[Trend] = field(default=())


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
    entries = [Entry(row=row, facts=facts_of(row)) for row in rows if row.alias == "champion"]
    moves = [entry for entry in entries if entry.row.moves]
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


def facts_of(row: Row) -> dict[str, Any]:
    """What the row says; nothing where its text is not a JSON object."""
    try:
        found = row.facts
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def trends_of(entries: Sequence[Entry]) -> list[Trend]:
    """The candidate's number of each judged metric, verdict by verdict, as it was signed."""
    points: dict[str, list[tuple[float, int, float, str]]] = {}
    units: dict[str, str] = {}
    for entry in entries:
        for check in entry.facts.get("verdict", {}).get("checks", ()):
            evidence = check.get("evidence") or {}
            value, seconds = evidence.get("candidate"), entry.seconds
            if value is None or seconds is None:
                continue
            name = str(check.get("metric", ""))
            points.setdefault(name, []).append((seconds, entry.row.version, float(value), str(check["outcome"])))
            units[name] = str(evidence.get("unit", ""))
    return [Trend(name=name, label=label(name), unit=units[name], points=found) for name, found in points.items()]
