"""The ledger's rows about one version, from the registry's database or through its server, checked as they are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from canary_mlflow.errors import CanaryError
from canary_mlflow.ledger import table
from canary_mlflow.ledger.keys import key_folder, load_public, public_files
from canary_mlflow.ledger.rows import FIRST, Row, faults
from canary_mlflow.pages.database import has_ledger, reading
from canary_mlflow.registry.locks import registry_uri
from canary_mlflow.registry.plugin import plain_uri
from canary_mlflow.registry.remote import ask
from canary_mlflow.reports.study import LedgerRow

if TYPE_CHECKING:
    from mlflow import MlflowClient

Rows = list[tuple[Row, str | None]]
"""Each row with the digest of the row before it; None where that is not known here."""


def rows_of(client: MlflowClient, model: str, version: str) -> tuple[Rows, str]:
    """The rows about a version's claim to be champion, in their order, and a sentence where there are none."""
    uri = plain_uri(registry_uri(client))
    try:
        found = from_server(client, model) if uri.startswith(("http://", "https://")) else from_database(uri, model)
    except CanaryError as error:
        return [], f"The ledger cannot be read: {error}."
    if found is None:
        return [], "No ledger: this registry is not guarded (docs/guard.md)."
    mine = [(row, before) for row, before in found if str(row.version) == version and row.alias == "champion"]
    return mine, "" if mine else f"No row of the ledger is about version {version} of {model}."


def from_database(uri: str, model: str) -> Rows | None:
    """Read-only; None where the guard was never installed."""
    with reading(uri) as connection:
        if not has_ledger(connection):
            return None
        return [(row, digest_before(connection, row)) for row in table.read(connection, model)]


def digest_before(connection: Any, row: Row) -> str | None:
    """The digest that a row must name as that of the row before it."""
    if row.seq == 1:
        return FIRST
    before = table.row_at(connection, row.seq - 1)
    return None if before is None else before.digest


def from_server(client: MlflowClient, model: str) -> Rows | None:
    """Page by page; None for a server without our routes."""
    rows: list[Row] = []
    while True:
        after = rows[-1].seq if rows else 0
        answer = ask(client, "GET", f"ledger?model={quote(model, safe='')}&after={after}")
        if answer is None:
            return None
        rows += [Row(**plain) for plain in answer["rows"]]
        if not answer["more"]:
            return [(row, FIRST if row.seq == 1 else None) for row in rows]


def shown(rows: Iterable[tuple[Row, str | None]]) -> list[LedgerRow]:
    """As a report shows them."""
    return [shown_row(row, before) for row, before in rows]


def shown_row(row: Row, before: str | None) -> LedgerRow:
    """One row with what speaks against it, by the keys that this machine trusts."""
    try:
        problems = list(faults(row, before, load_public(public_files(key_folder()))))
    except (CanaryError, OSError) as error:
        problems = [f"the trusted keys cannot be read: {error}"]
    try:
        facts = row.facts
    except ValueError:
        facts = {}
    return LedgerRow(
        seq=row.seq,
        kind=row.kind,
        word=row.word,
        actor=str(facts.get("actor", "")),
        time=str(facts.get("time", "")),
        digest=row.digest,
        key_id=row.key_id,
        problems=problems,
        stranger=len(problems) == 1 and "is not among the trusted ones" in problems[0],
    )
