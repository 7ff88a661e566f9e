"""What the registry's database says: models, their champions, and a model's history of verdicts, acts and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchModel, Refused
from canary_mlflow.gates.model.metrics import label
from canary_mlflow.ledger import table
from canary_mlflow.ledger.chain import Kind, Row
from canary_mlflow.mlflow_internals import active_workspace
from canary_mlflow.pages.requests import argument, as_answer, readers, registry_database, rendered, runs_database
from canary_mlflow.registry.guard.evaluated import WITHDRAWN
from canary_mlflow.registry.policies.in_force import matches, pattern_of, said_by
from canary_mlflow.registry.versions import CHAMPION
from canary_mlflow.tracking.reading.database import read_facts
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.stores.read_only import (
    ALIASES,
    MODELS,
    RUNS,
    TAGS,
    VERSION_TAGS,
    has_ledger,
)

if TYPE_CHECKING:
    from flask import Response

BY_HAND = (Kind.BLESS, Kind.OVERRIDE, Kind.ROLLBACK, Kind.ADOPT, Kind.FACTS, Kind.REQUEST)
Point = tuple[int, int, float, str, float | None]
SHOWN = (Kind.FACTS, Kind.REQUEST, Kind.EVALS)  # not about an alias, but still part of a decision about the champion
MOST = 500  # versions or sessions of a model that are searched


def names_of_models(connection: sa.Connection) -> list[str]:
    """The names of all models of the active workspace, sorted."""
    mine = sa.select(MODELS.c.name).where(MODELS.c.workspace == active_workspace())
    return list(connection.execute(mine.order_by(MODELS.c.name)).scalars())


def read_champions(connection: sa.Connection, model: str | None = None) -> list[tuple[str, int]]:
    """(model, version) of every champion of the active workspace, or only of one model's."""
    query = sa.select(ALIASES.c.name, ALIASES.c.version).where(
        ALIASES.c.alias == CHAMPION, ALIASES.c.workspace == active_workspace()
    )
    if model is not None:
        query = query.where(ALIASES.c.name == model)
    return [(name, version) for name, version in connection.execute(query)]


def champion_session(connection: sa.Connection, model: str) -> tuple[int | None, str]:
    """The champion's version and the session that is its evidence; (None, '') if there is no champion."""
    found = read_champions(connection, model)
    if not found:
        return None, ""
    version = found[0][1]
    return version, session_of(connection, model, version)


def session_of(connection: sa.Connection, model: str, version: int) -> str:
    """The session that is a version's evidence; '' if none is known."""
    query = sa.select(VERSION_TAGS.c.value).where(
        VERSION_TAGS.c.workspace == active_workspace(),
        VERSION_TAGS.c.name == model,
        VERSION_TAGS.c.version == version,
        VERSION_TAGS.c.key == tags.SESSION_ID,
    )
    return connection.execute(query).scalars().first() or ""


def versions_of(connection: sa.Connection, sessions: Sequence[str]) -> dict[str, tuple[str, int, str]]:
    """Session → the newest version that it is the evidence of, and that version's verdict, '' for none. Only the
    ledger's own word can stand in a version's tag; who may edit a session can write another into the session's."""
    word = VERSION_TAGS.alias("word")
    same = (VERSION_TAGS.c.workspace == word.c.workspace, VERSION_TAGS.c.name == word.c.name)
    judged = sa.and_(*same, VERSION_TAGS.c.version == word.c.version, word.c.key == tags.VERDICT)
    query = (
        sa.select(VERSION_TAGS.c.value, VERSION_TAGS.c.name, VERSION_TAGS.c.version, word.c.value)
        .select_from(VERSION_TAGS.outerjoin(word, judged))
        .where(VERSION_TAGS.c.workspace == active_workspace(), VERSION_TAGS.c.key == tags.SESSION_ID)
        .where(VERSION_TAGS.c.value.in_(sessions))
        .order_by(VERSION_TAGS.c.version)
    )
    found = connection.execute(query) if sessions else ()
    return {session: (name, version, said or "") for session, name, version, said in found}


def with_words(connection: sa.Connection, heads: Sequence[RunFacts]) -> dict[str, RunFacts]:
    """The sessions by id, each that left a version with that version's verdict."""
    known = versions_of(connection, [head.run_id for head in heads])
    words = {session: {tags.VERDICT: word} for session, (_, _, word) in known.items()}
    return {head.run_id: replace(head, tags={**head.tags, **words.get(head.run_id, {})}) for head in heads}


def newest_sessions(connection: sa.Connection, model: str) -> list[str]:
    """The sessions that are the evidence of a model's newest versions, newest first."""
    query = (
        sa.select(VERSION_TAGS.c.value)
        .where(VERSION_TAGS.c.workspace == active_workspace(), VERSION_TAGS.c.name == model)
        .where(VERSION_TAGS.c.key == tags.SESSION_ID)
        .order_by(VERSION_TAGS.c.version.desc())
    )
    return list(dict.fromkeys(connection.execute(query.limit(MOST)).scalars()))


def version_behind(connection: sa.Connection, model: str, alias: str) -> int | None:
    """The version that an alias names; None if it names none."""
    query = sa.select(ALIASES.c.version).where(
        ALIASES.c.workspace == active_workspace(), ALIASES.c.name == model, ALIASES.c.alias == alias
    )
    return connection.execute(query).scalars().first()


def is_model(connection: sa.Connection, name: str) -> bool:
    """Whether a model of that name is registered."""
    query = sa.select(MODELS.c.name).where(MODELS.c.workspace == active_workspace(), MODELS.c.name == name)
    return connection.execute(query).first() is not None


# ---- a model's history -----------------------------------------------------------------------------------------------


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
        return self.row.kind in BY_HAND or self.row.word == WITHDRAWN

    @property
    def word(self) -> str:
        """The verdict or act: `PASS`, `evals withdrawn`."""
        return f"evals {self.row.word}" if self.row.kind == Kind.EVALS else self.row.word

    @property
    def about(self) -> str:
        """`version 4`, `strict for sft-*`."""
        policy = f"{self.facts.get('policy', '')} for {pattern_of(self.row)}"
        return policy if self.row.kind == Kind.POLICY else f"version {self.row.version}"

    @property
    def why(self) -> str:
        """A person's reason; else what was changed, in few words; else the verdict's reason."""
        changed = "" if self.by_hand else self.facts.get("changed", "")
        return str(changed or self.facts.get("reason", ""))

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
    """One metric over the verdicts of a model: (row, version, value, outcome of the check, limit or None)."""

    name: str
    label: str
    unit: str
    points: Sequence[Point]


@dataclass(frozen=True, kw_only=True)
class History:
    """Everything about one model. `guarded`: whether there is a ledger."""

    model: str
    champion: int | None
    guarded: bool
    entries: Sequence[Entry] = ()
    reigns: Sequence[Reign] = ()
    overrides: Sequence[Entry] = ()
    trends: Sequence[Trend] = ()

    @property
    def verdicts(self) -> Sequence[Entry]:
        """The rows that hold a verdict, oldest first."""
        return [entry for entry in self.entries[::-1] if entry.judged]

    @property
    def made_by_hand(self) -> Sequence[int]:
        """The versions that a person made champion."""
        return sorted({reign.entry.row.version for reign in self.reigns if reign.entry.by_hand})


def read_history(model: str) -> History:
    """The history of a model. Raises NoSuchModel, and Refused if its reader may not see it."""
    if not readers().model(model):
        raise Refused(f"model {model!r}: one that you may not read")
    connection = registry_database()
    if not is_model(connection, model):
        raise NoSuchModel(f"model {model[:256]!r}: not in the registry; expected a registered model; see the overview")
    champion = dict(read_champions(connection, model)).get(model)
    guarded = has_ledger(connection)
    rows = list(table.read(connection, model, active_workspace())) if guarded else []
    every = table.read(connection, "", active_workspace(), kind=Kind.POLICY) if guarded else ()
    rows = [row for row in rows if row.alias == CHAMPION or row.kind in SHOWN]
    rows += [row for row in every if matches(pattern_of(row), model)]
    entries = [Entry(row=row, facts=said_by(row)) for row in sorted(rows, key=lambda row: row.seq)]
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


def evaluated(model: str, version: int | str | None) -> list[Entry]:
    """The rows on a version's evaluations, oldest first: what was added, and what was withdrawn."""
    connection = registry_database()
    if not version or not has_ledger(connection):
        return []
    rows = table.read(connection, model, active_workspace(), kind=Kind.EVALS, version=int(version))
    return [Entry(row=row, facts=said_by(row)) for row in rows]


def trends_of(entries: Sequence[Entry]) -> list[Trend]:
    """The candidate's value of each judged metric in each verdict, as signed."""
    points: dict[str, list[Point]] = {}
    units: dict[str, str] = {}
    for entry in entries:
        for check in entry.facts["verdict"].get("checks", ()) if entry.judged else ():
            evidence = check.get("evidence") or {}
            value = evidence.get("candidate")
            if value is None:
                continue
            name = str(check.get("metric", ""))
            found = (entry.row.seq, entry.row.version, float(value), str(check["outcome"]), limit_of(evidence))
            points.setdefault(name, []).append(found)
            units[name] = str(evidence.get("unit", ""))
    return [Trend(name=name, label=label(name), unit=units[name], points=found) for name, found in points.items()]


def limit_of(evidence: Mapping[str, Any]) -> float | None:
    """The value from which a metric was too bad; None if it had no limit."""
    before, margin = evidence.get("baseline"), evidence.get("margin")
    if before is None or margin is None:
        return None
    return float(before) * (1 + float(margin)) if evidence.get("relative") else float(before) + float(margin)


def without_row(history: History) -> list[RunFacts]:
    """Judged sessions of the model that left no version and so have no row; newest first, among the last MOST."""
    known = {entry.facts.get("session") for entry in history.entries}
    mine = sa.select(TAGS.c.run_uuid).where(TAGS.c.key == tags.MODEL_NAME, TAGS.c.value == history.model)
    query = sa.select(RUNS.c.run_uuid).where(RUNS.c.run_uuid.in_(mine), RUNS.c.lifecycle_stage == "active")
    ids = list(runs_database().execute(query.order_by(RUNS.c.start_time.desc()).limit(MOST)).scalars())
    keys = (tags.ROLE, tags.VERDICT, tags.VERDICT_REASON, tags.CHANGED)
    found = read_facts(runs_database(), [one for one in ids if one not in known], tags=keys)
    return [one for one in found.values() if one.tags.get(tags.ROLE) == "session" and one.tags.get(tags.VERDICT)]


# ---- routes ----------------------------------------------------------------------------------------------------------


def model() -> str:
    """The page of a model's history."""
    page = read_history(argument("name"))
    others = [one for one in without_row(page) if readers().experiment(one.experiment)]
    return rendered("canary/model.html", page=page, others=others, timeline=timeline(page))


def timeline(history: History) -> list[dict[str, Any]]:
    """Every verdict, oldest first, with what was changed since the champion then."""
    return [
        {"row": one.row.seq, "version": one.row.version, "word": one.row.word, "changed": one.facts.get("changed", "")}
        for one in history.verdicts
    ]


def model_json() -> Response:
    """The metric trends of a model over its verdicts, oldest first; `by_hand`: versions that a person made champion."""
    found = read_history(argument("name"))
    trends = [{"name": one.name, "unit": one.unit, "points": list(one.points)} for one in found.trends]
    champions = [reign.entry.row.version for reign in found.reigns]
    by_hand = list(found.made_by_hand)
    return as_answer({"champions": champions, "by_hand": by_hand, "verdicts": timeline(found), "trends": trends})
