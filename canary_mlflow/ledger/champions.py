"""Reads from the ledger who was champion when, by which row and by whom."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from canary_mlflow.errors import UsageError
from canary_mlflow.gates.model.wording import counted
from canary_mlflow.ledger.chain import Kind, Row, facts_of, settled

DAY = len("2026-11-21")


def parse_moment(text: str) -> datetime:
    """The moment of a date (its last moment, UTC) or of a date with time (UTC by default). Raises UsageError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--at {text[:80]!r}: no date; expected ISO 8601, such as 2026-11-21 or 2026-11-21T10:00"
        ) from None
    if len(text) == DAY:
        found = found.replace(hour=23, minute=59, second=59, microsecond=999_999)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def champion_at(rows: Iterable[Row], moment: datetime, alias: str) -> Row | None:
    """The row by which a version held the alias at that moment; None before the first. The order of rows counts,
    whatever clocks said; a row whose text is junk makes nothing champion."""
    moves = [row for row, since in settled(rows) if row.moves and row.facts and row.alias == alias and since <= moment]
    return moves[-1] if moves else None


def several_places(rows: Iterable[Row]) -> bool:
    """Whether rows are about models of more than one workspace."""
    return len({row.workspace for row in rows}) > 1


def line(row: Row, *, place: bool = False) -> str:
    """One row for people. `place`: with the model's workspace."""
    facts = facts_of(row)
    if facts is None:
        return f"{row.seq:>5}  its text is not a JSON object; see: canary audit verify"
    when = str(facts.get("time", ""))[:19]
    if row.kind == Kind.POLICY:
        return (
            f"{row.seq:>5}  {when}  {row.kind:<9} {facts.get('policy')} for models like {facts.get('pattern')}, "
            f"digest {str(facts.get('policy_digest', ''))[:12]}, by {facts.get('actor', '')}: {facts.get('reason', '')}"
        )
    adopted = row.kind == Kind.ADOPT
    asked = f", asked for by {facts['asked_by']} in row {facts['request_row']}" if facts.get("asked_by") else ""
    moved = f", {row.alias} {'as it was' if adopted else 'moved'}" if row.moves else ""
    over = f" over version {facts['baseline_version']}" if facts.get("baseline_version") and not adopted else ""
    name = f"{row.workspace}/{row.model}" if place else row.model
    if row.kind == Kind.SESSION:
        runs = facts.get("runs")
        what = f"session {row.alias}" + (f", {counted(len(runs), 'run')}" if isinstance(runs, dict) else "")
        what += "".join(
            f", run {run_id} of version {number}'s code" for run_id, number in facts.get("ordered", {}).items()
        )
        return f"{row.seq:>5}  {when}  {row.kind:<9} {row.word:<12} {name} {what}, by {facts.get('actor', '')}"
    about = f"{name} version {row.version}" if row.version else name or "the ledger"
    if row.kind == Kind.PRUNE and not row.version:  # an older row, about a session without a version
        about = f"{name} session {facts.get('session')}"
    return (
        f"{row.seq:>5}  {when}  {row.kind:<9} {row.word:<12} {about}"
        f"{over}{moved}, by {facts.get('actor', '')}{asked}: {facts.get('reason', '')}"
    )
