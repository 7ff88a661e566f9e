"""Checks that the ledger is what was written, and when. Needs only the rows and the public keys.

Time in rows never goes back: a row has its `time`, never earlier than that of the previous row, whatever the writer's
clock says. If the clock was behind, the row has the previous row's time, and the clock's own as `clock`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import parse_json
from canary_mlflow.ledger.keys import PublicKeys
from canary_mlflow.ledger.rows import FIRST, Row, faults


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One thing that is wrong; `seq` is None for the ledger as a whole."""

    seq: int | None
    what: str

    def __str__(self) -> str:
        return self.what if self.seq is None else f"row {self.seq}: {self.what}"


def damages(rows: Iterable[Row], keys: PublicKeys, head: str | None = None) -> Iterator[Damage]:
    """Everything that is wrong with a whole ledger, in order. `head`: a `SEQ:DIGEST` saved earlier, or None."""
    previous, expected = FIRST, 1
    saved, saved_digest = parse_head(head) if head else (None, "")
    for row in rows:
        if row.seq != expected:
            yield Damage(seq=row.seq, what=f"row {expected} is missing before it")
        follows = previous if row.seq == expected else None
        yield from (Damage(seq=row.seq, what=what) for what in faults(row, follows, keys))
        if row.seq == saved and row.digest != saved_digest:
            yield Damage(seq=row.seq, what="it is not the row that the saved head names")
        previous, expected = row.digest, row.seq + 1
    if saved is not None and saved >= expected:
        yield Damage(seq=None, what=f"the ledger ends at row {expected - 1}; the saved head names row {saved}")


def parse_head(text: str) -> tuple[int, str]:
    """`SEQ:DIGEST` as `canary audit verify` prints it. Raises UsageError."""
    seq, _, found = text.strip().partition(":")
    if not seq.isdecimal() or len(found) != 64:
        raise UsageError(f"--head {text[:80]!r}: expected SEQ:DIGEST as `canary audit verify` prints it")
    return int(seq), found


def to_line(row: Row) -> str:
    """One line of an export."""
    return json.dumps(asdict(row), ensure_ascii=True)


def from_lines(lines: Iterable[str], source: str) -> Iterator[Row]:
    """The rows of an export. Raises UsageError for a line that is not a row."""
    kinds = {field.name: int if field.type == "int" else str for field in fields(Row)}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found: Any = parse_json(line)
        except ValueError:
            found = None
        if not isinstance(found, dict) or {name: type(found.get(name)) for name in kinds} != kinds:
            raise UsageError(f"{source}, line {number}: no row of a ledger; expected what `canary audit export` writes")
        yield Row(**{name: found[name] for name in kinds})


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
