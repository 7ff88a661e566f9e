"""The time of rows: never before that of the row before, whatever the clock of whoever writes says.

A row carries its time; where the writer's clock stood behind the row before, it carries that row's time, and what the
clock said as `clock`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from canary_mlflow.ledger.chain import Damage
from canary_mlflow.ledger.rows import Row

TOLERANCE = timedelta(minutes=1)  # how far the clocks of hosts that write to one ledger may differ unsaid
NEVER = datetime.min.replace(tzinfo=UTC)


def stamp(after: Row | None) -> dict[str, str]:
    """The facts on time of the row that follows `after`: ISO 8601, UTC, milliseconds."""
    now = datetime.fromtimestamp(time.time(), UTC)
    before = moment(after, "time") if after is not None else None
    if before is None or now >= before:
        return {"time": spelled(now)}
    return {"time": spelled(before), "clock": spelled(now)}


def moment(row: Row, name: str) -> datetime | None:
    """A row's `time` or `clock`; None where it has none that can be read."""
    try:
        found = datetime.fromisoformat(row.facts[name])
    except (KeyError, TypeError, ValueError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def settled(rows: Iterable[Row]) -> Iterator[tuple[Row, datetime]]:
    """Each row with the time from which it counts: its own, or that of a row before it where that is later."""
    latest = NEVER
    for row in rows:
        latest = max(latest, moment(row, "time") or latest)
        yield row, latest


def backward(rows: Iterable[Row]) -> Iterator[Damage]:
    """Rows whose time lies before that of an earlier one and that do not say so: no row is written like that."""
    latest, by = NEVER, 0
    for row in rows:
        own = moment(row, "time") or latest
        if latest - own > TOLERANCE:
            yield Damage(seq=row.seq, what=f"its time is {shortly(latest - own)} before that of row {by}")
        if own >= latest:
            latest, by = own, row.seq


def late_clocks(rows: Iterable[Row]) -> Iterator[str]:
    """Where a writer's clock stood behind the one that wrote the row before, in words."""
    before: datetime | None = None
    for row in rows:
        now = moment(row, "clock") or moment(row, "time")
        if now is not None and before is not None and before - now > TOLERANCE and "clock" in row.facts:
            yield (
                f"row {row.seq}: the clock of its writer stood {shortly(before - now)} behind that of row "
                f"{row.seq - 1}; it has the time of that row"
            )
        before = now or before


def shortly(gap: Any) -> str:
    """A span of time without fractions of a second."""
    return str(timedelta(seconds=int(gap.total_seconds())))


def spelled(when: datetime) -> str:
    """As it stands in a row."""
    return when.isoformat(timespec="milliseconds")
