"""The ledger's rows about one version, from the registry's database or through its server, checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from canary_mlflow.errors import CanaryError
from canary_mlflow.ledger import table
from canary_mlflow.ledger.keys import PublicKeys, trusted
from canary_mlflow.ledger.rows import FIRST, ReadRow, Row, checked, facts_of
from canary_mlflow.ledger.succession import with_rows
from canary_mlflow.ledger.uris import plain_uri
from canary_mlflow.ledger.writing import keys_in
from canary_mlflow.registry.locks import registry_uri
from canary_mlflow.registry.remote import ask
from canary_mlflow.registry.workspaces import active_workspace
from canary_mlflow.reports.decision import Decision, holds_from_list
from canary_mlflow.tracking.stores.read_only import has_ledger, reading
from gates.model.verdict import verdict_from_dict

if TYPE_CHECKING:
    from mlflow import MlflowClient


Rows = list[ReadRow]
BEGINS = ("bootstrap",)


def rows_of(client: MlflowClient, model: str, version: str) -> tuple[Rows, str]:
    """The rows about a version's claim to be champion, in order, and a sentence if there are none."""
    uri = plain_uri(registry_uri(client))
    try:
        remote, about = uri.startswith(("http://", "https://")), (model, int(version))
        found = from_server(client, *about) if remote else from_database(uri, *about)
    except CanaryError as error:
        return [], f"The ledger cannot be read: {error}."
    if found is None:
        return [], "No ledger: this registry is not guarded (docs/guard.md)."
    mine = [one for one in found if one.row.alias == "champion"]
    return mine, "" if mine else f"No row of the ledger is about version {version} of {model}."


def from_database(uri: str, model: str, version: int) -> Rows | None:
    """A version's rows from the database, read-only; None if the guard was never installed."""
    with reading(uri) as connection:
        if not has_ledger(connection):
            return None
        rows = list(table.read(connection, model, active_workspace(), version=version))
        return checked([(row, digest_before(connection, row)) for row in rows], partial(keys_in, connection))


def digest_before(connection: Any, row: Row) -> str | None:
    """The digest that a row must have as that of the previous row."""
    if row.seq == 1:
        return FIRST
    before = table.row_at(connection, row.seq - 1)
    return None if before is None else before.digest


def from_server(client: MlflowClient, model: str, version: int) -> Rows | None:
    """The same from a server, page by page; None for a server without our routes."""
    rows: list[Row] = []
    about = f"model={quote(model, safe='')}&version={version}"
    while True:
        after = rows[-1].seq if rows else 0
        answer = ask(client, "GET", f"ledger?{about}&after={after}")
        if answer is None:
            return None
        rows += [Row(**plain) for plain in answer["rows"]]
        if not answer["more"]:
            return checked(
                [(row, FIRST if row.seq == 1 else None) for row in rows], partial(server_keys, answer["keys"])
            )


def server_keys(answer: Mapping[str, Any]) -> PublicKeys:
    """The keys that are trusted here, with what, by the server, its ledger's rows say about them."""
    return with_rows(trusted(), [Row(**plain) for plain in answer["rows"]], answer["first"].get)


def shown(rows: Rows) -> list[dict[str, Any]]:
    """As a report shows them. `problems`: sentences on what is wrong with a row. `stranger`: the only problem is that
    its key is not known here."""
    found = []
    for read in rows:
        facts = facts_of(read.row) or {}
        said = {"actor": str(facts.get("actor", "")), "time": str(facts.get("time", ""))}
        row = {name: getattr(read.row, name) for name in ("seq", "kind", "word", "digest", "key_id")}
        found.append({**row, **said, "problems": list(read.problems), "stranger": read.stranger})
    return found


def decision_of(row: Row, facts: Mapping[str, Any]) -> Decision | None:
    """The decision that a row records; None for an act by hand or a text that cannot be read."""
    try:
        verdict = verdict_from_dict(facts["verdict"])
    except (KeyError, TypeError, ValueError):
        return None
    number = facts.get("baseline_version")
    before = None if number is None else str(number)
    return Decision(
        verdict=verdict,
        model=row.model,
        version=str(row.version),
        promoted=bool(row.moves),
        bootstrapped=row.kind in BEGINS,
        holds=holds_from_list(facts.get("held_back")),
        champion_before=before,
        champion_after=str(row.version) if row.moves else before,
        session_id=facts.get("session"),
    )
