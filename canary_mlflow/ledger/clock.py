"""The time of rows: never earlier than that of the previous row, whatever the writer's clock says.

A row has its `time`. If the writer's clock was behind the previous row, it has that row's time, and the clock's own as
`clock`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from canary_mlflow.ledger.chain import Damage
from canary_mlflow.ledger.rows import Row

TOLERANCE = timedelta(minutes=1)  # how far clocks of hosts that write to one ledger may differ without a report
NEVER = datetime.min.replace(tzinfo=UTC)


def stamp(after: Row | None) -> dict[str, str]:
    """The facts on time of the row that follows `after`: ISO 8601, UTC, milliseconds."""
    now = datetime.fromtimestamp(time.time(), UTC)
    before = moment(time_of(after)) if after is not None else None
    if before is None or now >= before:
        return {"time": spelled(now)}
    return {"time": spelled(before), "clock": spelled(now)}


def time_of(row: Row) -> Any:
    """A row's `time` as stored; None if it has none."""
    return row.moments[0] if row.moments else None


def moment(text: Any) -> datetime | None:
    """A row's `time` or `clock` as a moment; None if it cannot be read."""
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def settled(rows: Iterable[Row]) -> Iterator[tuple[Row, datetime]]:
    """Each row with the time from which it counts: its own, or an earlier row's if that is later."""
    latest = NEVER
    for row in rows:
        latest = max(latest, moment(time_of(row)) or latest)
        yield row, latest


def jumps(rows: Iterable[Row]) -> tuple[list[Damage], list[str]]:
    """Where time went back: rows that are earlier than a previous one without saying so, as no row of ours is; and, in
    words, where a writer's clock was behind that of the previous row's writer."""
    damages: list[Damage] = []
    notes: list[str] = []
    latest, by = NEVER, 0
    before: datetime | None = None
    for row in rows:
        own, clock = (moment(text) for text in row.moments or (None, None))
        if own is None:
            continue  # the check of the chain reports it
        if latest - own > TOLERANCE:
            damages.append(Damage(seq=row.seq, what=f"its time is {shortly(latest - own)} before that of row {by}"))
        if own >= latest:
            latest, by = own, row.seq
        if clock and before and before - clock > TOLERANCE:
            notes.append(
                f"row {row.seq}: the clock of its writer was {shortly(before - clock)} behind that of the row "
                "before; it has the time of that row"
            )
        before = clock or own
    return damages, notes


def shortly(gap: timedelta) -> str:
    """A span of time without fractions of a second."""
    return str(timedelta(seconds=int(gap.total_seconds())))


def spelled(when: datetime) -> str:
    """A moment as it is written in a row."""
    return when.isoformat(timespec="milliseconds")
