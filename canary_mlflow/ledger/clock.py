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
    before = moment(time_of(after)) if after is not None else None
    if before is None or now >= before:
        return {"time": spelled(now)}
    return {"time": spelled(before), "clock": spelled(now)}


def time_of(row: Row) -> Any:
    """What a row has as its time; None where it has none."""
    return row.moments[0] if row.moments else None


def moment(text: Any) -> datetime | None:
    """A row's `time` or `clock`; None where it is none that can be read."""
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def settled(rows: Iterable[Row]) -> Iterator[tuple[Row, datetime]]:
    """Each row with the time from which it counts: its own, or that of a row before it where that is later."""
    latest = NEVER
    for row in rows:
        latest = max(latest, moment(time_of(row)) or latest)
        yield row, latest


def jumps(rows: Iterable[Row]) -> tuple[list[Damage], list[str]]:
    """Where time went back: rows that lie before an earlier one and do not say so, which no row is written like; and in
    words, where a writer's clock stood behind the one that wrote the row before."""
    damages: list[Damage] = []
    notes: list[str] = []
    latest, by = NEVER, 0
    before: datetime | None = None
    for row in rows:
        own, clock = (moment(text) for text in row.moments or (None, None))
        if own is None:
            continue  # named for what it is by the check of the chain
        if latest - own > TOLERANCE:
            damages.append(Damage(seq=row.seq, what=f"its time is {shortly(latest - own)} before that of row {by}"))
        if own >= latest:
            latest, by = own, row.seq
        if clock and before and before - clock > TOLERANCE:
            notes.append(
                f"row {row.seq}: the clock of its writer stood {shortly(before - clock)} behind that of the row "
                "before; it has the time of that row"
            )
        before = clock or own
    return damages, notes


def shortly(gap: timedelta) -> str:
    """A span of time without fractions of a second."""
    return str(timedelta(seconds=int(gap.total_seconds())))


def spelled(when: datetime) -> str:
    """As it stands in a row."""
    return when.isoformat(timespec="milliseconds")
