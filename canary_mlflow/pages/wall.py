"""The wall: for each model its last verdicts, the metric that decided with its limit, and what changed last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from canary_mlflow import tags
from canary_mlflow.gates.model.rules import Role
from canary_mlflow.ledger import table
from canary_mlflow.ledger.chain import Kind, Row
from canary_mlflow.mlflow_internals import active_workspace
from canary_mlflow.pages.models import limit_of, names_of_models, read_champions, versions_of
from canary_mlflow.pages.requests import readers
from canary_mlflow.registry.policies.in_force import said_by
from canary_mlflow.reports.sweep import LEARNED
from canary_mlflow.tracking.reading.database import read_facts
from canary_mlflow.tracking.reading.facts import count
from canary_mlflow.tracking.stores.read_only import TAGS, has_ledger

LAST = 30  # verdicts in a strip
ALONE = 200  # sessions without a version that are shown among all models
KEPT = 20_000  # rows of the ledger that were read once: what they say never changes
ABOUT = (Kind.VERDICT, Kind.BOOTSTRAP, Kind.BLESS, Kind.OVERRIDE, Kind.ROLLBACK, Kind.ADOPT)
URGENCY = ("BLOCK", "INCONCLUSIVE")
WIDTH, HEIGHT = 150.0, 28.0  # of the sparkline, in SVG units
_known: dict[tuple[int, str], Beat] = {}


@dataclass(frozen=True, kw_only=True)
class Beat:
    """One verdict, or one act by hand. `row`: its number in the ledger; else `session`, which left no version. `at`: ms
    since 1970. `values`: (value, limit or None) of each metric that may decide. `decided`: the metric that it rests on,
    '' if that has no number."""

    word: str
    at: float
    why: str
    changed: str = ""
    row: int | None = None
    version: int | None = None
    session: str = ""
    values: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    decided: str = ""


@dataclass(frozen=True, kw_only=True)
class WallRow:
    """One model, with its last beats, the oldest first."""

    model: str
    champion: int | None
    beats: Sequence[Beat]

    @property
    def last(self) -> Beat | None:
        """The newest."""
        return self.beats[-1] if self.beats else None

    @cached_property
    def metric(self) -> str:
        """The metric that the last verdict rests on; where it has no number, one that says what was learned."""
        known = [name for beat in reversed(self.beats) for name in beat.values]
        decided = self.last.decided if self.last else ""
        return decided or next((name for name in LEARNED if name in known), next(iter(known), ""))

    @cached_property
    def spark(self) -> Spark | None:
        """The metric over the beats; None if it has no two values."""
        found = [(at, beat.values[self.metric]) for at, beat in enumerate(self.beats) if self.metric in beat.values]
        if len(found) < 2:
            return None
        limit = next((one[1] for _, one in reversed(found) if one[1] is not None), None)
        shown = [one[0] for _, one in found]
        ends = shown if limit is None else [*shown, limit]
        low, high = min(ends), max(ends)
        height = (high - low) or abs(high) or 1.0

        def y(value: float) -> float:
            return round(HEIGHT - 3 - (HEIGHT - 6) * (value - low) / height, 1)

        step = WIDTH / max(1, len(self.beats) - 1)
        points = [(round(at * step, 1), y(one[0])) for at, one in found]
        word = self.beats[found[-1][0]].word
        line = None if limit is None else y(limit)
        return Spark(points=points, limit=line, first=shown[0], value=shown[-1], bound=limit, word=word)

    @property
    def counted(self) -> str:
        """`28 PASS, 2 BLOCK`."""
        words = dict.fromkeys(beat.word for beat in reversed(self.beats))
        return ", ".join(f"{sum(one.word == word for one in self.beats)} {word}" for word in words)


@dataclass(frozen=True, kw_only=True)
class Spark:
    """A sparkline in SVG units, its first and last value, the limit then, and the verdict that had the last value."""

    points: Sequence[tuple[float, float]]
    limit: float | None
    first: float
    value: float
    bound: float | None
    word: str


def read_wall(registry: sa.Connection, runs: sa.Connection, ended: Sequence[str]) -> list[WallRow]:
    """A row for each model that the reader may see: red first, then what is open, then the newest. `ended`: the newest
    runs, among which are the sessions that left no version."""
    guarded = has_ledger(registry)
    champions, beats = dict(read_champions(registry)), left_no_version(registry, runs, ended, guarded=guarded)
    for name in names_of_models(registry):
        beats[name] += said_about(registry, name) if guarded else []
    rows = [
        WallRow(model=name, champion=champions.get(name), beats=sorted(found, key=lambda one: one.at)[-LAST:])
        for name, found in beats.items()
        if readers().model(name)
    ]

    def place(row: WallRow) -> tuple[int, float]:
        word = row.last.word if row.last else ""
        return URGENCY.index(word) if word in URGENCY else len(URGENCY), -(row.last.at if row.last else 0)

    return sorted(rows, key=place)


def said_about(registry: sa.Connection, model: str) -> list[Beat]:
    """The last beats of a model in the ledger; what was read once is not read again."""
    heads = table.heads_of_versions(registry, active_workspace(), model, LAST)
    missing = [seq for seq, digest in heads if (seq, digest) not in _known]
    if len(_known) + len(missing) > KEPT:
        _known.clear()
        missing = [seq for seq, _ in heads]
    for row in table.rows_at(registry, missing):
        _known[row.seq, row.digest] = beat_of(row)
    return [beat for head in heads if (beat := _known.get(head)) is not None and beat.word]


def beat_of(row: Row) -> Beat:
    """What a row says; without a word if it is about something else than a champion."""
    facts = said_by.__wrapped__(row)
    try:
        at = datetime.fromisoformat(str(facts.get("time", ""))).timestamp() * 1000
    except ValueError:
        at = 0.0
    verdict = facts.get("verdict")
    checks = verdict.get("checks", ()) if isinstance(verdict, dict) else ()
    gates = (one for one in checks if one.get("role") == Role.GATE)
    deciding = [one for one in gates if (one.get("evidence") or {}).get("candidate") is not None]
    asking = [one["metric"] for one in deciding if one.get("outcome") == row.word and row.word in URGENCY]
    return Beat(
        row=row.seq,
        version=row.version,
        word=row.word if row.kind in ABOUT else "",
        at=at,
        why=str(facts.get("reason", "")),
        changed=str(facts.get("changed", "")),
        values={str(one["metric"]): value_of(one["evidence"]) for one in deciding},
        decided=str(asking[0]) if asking else "",
    )


def value_of(evidence: Mapping[str, Any]) -> tuple[float, float | None]:
    """The candidate's value and the limit."""
    return float(evidence["candidate"]), limit_of(evidence)


def left_no_version(
    registry: sa.Connection, runs: sa.Connection, ended: Sequence[str], *, guarded: bool
) -> dict[str, list[Beat]]:
    """Model → verdicts of sessions that left no version, of those that ended last: no row is about them. Without a
    ledger, of all."""
    made = sa.select(TAGS.c.run_uuid).where(TAGS.c.key == tags.VERSION)
    judged = sa.select(TAGS.c.run_uuid).where(TAGS.c.run_uuid.in_(ended), TAGS.c.key == tags.VERDICT)
    found_by = judged.where(TAGS.c.run_uuid.not_in(made.where(TAGS.c.run_uuid.in_(ended)))) if guarded else judged
    there = set(runs.execute(found_by).scalars()) if ended else set()
    ids = [one for one in ended if one in there][:ALONE]
    known = versions_of(registry, ids) if guarded else {}
    shown = (tags.ROLE, tags.VERDICT, tags.VERDICT_REASON, tags.CHANGED, tags.MODEL_NAME, tags.VERSION)
    found: dict[str, list[Beat]] = defaultdict(list)
    for head in read_facts(runs, [one for one in ids if one not in known], tags=shown).values():
        model = head.tags.get(tags.MODEL_NAME, "")
        if head.tags.get(tags.ROLE) == "session" and model and readers().experiment(head.experiment):
            why, changed = (head.tags.get(key, "") for key in (tags.VERDICT_REASON, tags.CHANGED))
            at = float(head.ended or head.started)
            word, version = head.tags[tags.VERDICT], count(head.tags.get(tags.VERSION, "")) or None
            beat = Beat(word=word, at=at, why=why, changed=changed, session=head.run_id, version=version)
            found[model].append(beat)
    return found
