"""Evaluations as the ledger has them: which rows a version has, and whether their tables are still what was signed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from canary_mlflow.errors import CanaryError, StoreError, UsageError
from canary_mlflow.files.source import MAX_WHOLE, TooMuch, read_bytes
from canary_mlflow.ledger import table
from canary_mlflow.ledger.chain import Kind, Row
from canary_mlflow.registry.guard.binding import files_at

FILE = "evals.json"  # among the artifacts of an evaluation's run
ADDED, WITHDRAWN = "added", "withdrawn"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """`run`: the run in MLflow that holds it, with its table at `place`. `row`, `digest`, `weights`: what was signed;
    None and "" without a ledger. `withdrawn`: the row by which, by whom and why it does not count, or ""."""

    run: str
    place: str
    row: int | None = None
    digest: str = ""
    weights: str = ""
    withdrawn: str = ""
    withdrawal: int | None = None


def evaluations_in(rows: Iterable[Row]) -> list[Evaluation]:
    """The evaluations in the rows about a version, in order."""
    found: dict[str, Evaluation] = {}
    for row in rows:
        facts, run = row.facts, str(row.facts["run"])
        if row.word == WITHDRAWN:
            said = f"by {facts['actor']} in row {row.seq}: {facts['reason']}"
            found[run] = replace(found[run], withdrawn=said, withdrawal=row.seq)
        else:
            told: dict[str, Any] = {key: str(facts[key]) for key in ("place", "digest", "weights")}
            found[run] = Evaluation(**told, run=run, row=row.seq)
    return list(found.values())


def numbers_of(evaluations: Iterable[Evaluation]) -> dict[str, str]:
    """Number of each row → the digest that it signs, "" for a withdrawal: what a verdict is bound to."""
    added = {str(one.row): one.digest for one in evaluations if one.row}
    return added | {str(one.withdrawal): "" for one in evaluations if one.withdrawal}


def table_at(place: str, destination: str = "", store: str = "") -> bytes:
    """The bytes of an evaluation's table. Raises StoreError, UsageError."""
    try:
        with files_at(place, destination, store) as file:
            return read_bytes(file, MAX_WHOLE)
    except TooMuch as error:
        raise UsageError(f"{place} {error}") from None
    except OSError as error:
        raise StoreError(f"{place}: {error.strerror}; expected the table of an evaluation") from error


def fault_of(facts: Mapping[str, Any], destination: str = "", store: str = "") -> str:
    """What happened to the table that a row names, in words; "" if it is as it was signed."""
    try:
        now = hashlib.sha256(table_at(str(facts["place"]), destination, store)).hexdigest()
    except CanaryError as error:
        return f"the table of its evaluation cannot be read ({error})"
    return "" if now == facts["digest"] else "the table of its evaluation changed"


def rows_about(session: Any, workspace: str, model: str, versions: Sequence[int | None]) -> list[Row]:
    """The rows on evaluations of these versions."""
    return [row for row in table.read(session, model, workspace, kind=Kind.EVALS) if row.version in versions]
