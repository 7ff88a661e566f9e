"""Reading the ledger: who was champion when, by what and by whom."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from canary_mlflow.errors import UsageError
from canary_mlflow.ledger.rows import Row

DAY = len("2026-11-21")


def parse_moment(text: str) -> datetime:
    """A date (its last moment, UTC) or a date with time (UTC unless it says otherwise). Raises UsageError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--at {text[:80]!r}: no date; expected ISO 8601, such as 2026-11-21 or 2026-11-21T10:00"
        ) from None
    if len(text) == DAY:
        found = found.replace(hour=23, minute=59, second=59, microsecond=999_999)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def moved_at(row: Row) -> datetime:
    """When a row was written."""
    return datetime.fromisoformat(str(row.facts["time"]))


def champion_at(rows: Iterable[Row], moment: datetime, alias: str = "champion") -> Row | None:
    """The row by which somebody held the alias at that moment; None before the first."""
    moves = [row for row in rows if row.moves and row.alias == alias and moved_at(row) <= moment]
    return moves[-1] if moves else None


def line(row: Row) -> str:
    """One row for people."""
    facts = row.facts
    moved = f", {row.alias} moved" if row.moves else ""
    over = f" over version {facts['baseline_version']}" if facts.get("baseline_version") else ""
    return (
        f"{row.seq:>5}  {facts.get('time', '')[:19]}  {row.kind:<9} {row.word:<12} {row.model} version {row.version}"
        f"{over}{moved}, by {facts.get('actor', '')}: {facts.get('reason', '')}"
    )
