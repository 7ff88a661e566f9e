"""The ledger's rows about one version, as a report shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import CanaryError
from canary_mlflow.gates.model.verdict import verdict_from_dict
from canary_mlflow.ledger.chain import ReadRow, Row, facts_of
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.versions import EVIDENCE_ONLY
from canary_mlflow.reports.decision import Decision, holds_from_list

if TYPE_CHECKING:
    from mlflow import MlflowClient


Rows = list[ReadRow]
BEGINS = ("bootstrap",)


def rows_of(client: MlflowClient, model: str, version: str) -> tuple[Rows, str]:
    """The rows about a version's claim to be champion, in order, and a sentence if there are none."""
    try:
        found = registry_of(client).checked_rows(model, int(version))
    except CanaryError as error:
        return [], f"The ledger cannot be read: {error}."
    if found is None:
        return [], "No ledger: this registry is not guarded (docs/guard.md)."
    mine = [one for one in found if one.row.alias == "champion"]
    return mine, "" if mine else f"No row of the ledger is about version {version} of {model}."


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
        evidence_only=EVIDENCE_ONLY in verdict.notes,
        holds=holds_from_list(facts.get("held_back")),
        champion_before=before,
        champion_after=str(row.version) if row.moves else before,
        session_id=facts.get("session"),
    )
