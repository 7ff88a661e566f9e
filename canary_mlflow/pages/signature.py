"""Whether a row of the ledger is still what was signed, checked when the page is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from canary_mlflow.errors import CanaryError
from canary_mlflow.ledger.rows import FIRST, Row, faults
from canary_mlflow.ledger.writing import keys_in


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Whether a ledger row is intact. `problems`: sentences; empty if it is."""

    key_id: str
    problems: Sequence[str]

    @property
    def stranger(self) -> bool:
        """Whether the only problem is that this machine does not know the key."""
        return len(self.problems) == 1 and "is not among the trusted ones" in self.problems[0]


def signature_of(connection: Any, row: Row, before: Row | None) -> Signature:
    """The check of one row's digest, signature and chain against the keys that this machine trusts."""
    previous = FIRST if row.seq == 1 else before.digest if before is not None else None
    try:
        problems = list(faults(row, previous, keys_in(connection)))
    except (CanaryError, OSError) as error:
        problems = [f"the trusted keys cannot be read: {error}"]
    if previous is None:
        problems.append(f"row {row.seq - 1}, which it follows, is missing")
    return Signature(key_id=row.key_id, problems=problems)
