"""Checks that the ledger is what was written. Needs only the rows and the public keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
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
