"""Versions whose files were given up to free their space: what the ledger says about them, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from canary_mlflow.errors import UsageError
from canary_mlflow.ledger.chain import Kind, Row, holds
from canary_mlflow.tags import PRUNED, PRUNED_BY

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.registry.backends.registry import Registry

Version = tuple[str, str, int, int]  # as a row identifies it: workspace, model, number, creation time
BESIDE = "beside"  # key in a row: the champion at the time when the files were found to be no longer needed


def about(row: Row) -> Version:
    """The version that a row is about; the creation time tells it from others that had its number."""
    return row.workspace, row.model, row.version, row.version_created


def row_of(registry: Registry, found: ModelVersion) -> Row | None:
    """The row by which the version's files were given up: the first that a trusted key signed; None if there is
    none."""
    numbers = int(found.version), int(found.creation_timestamp)
    rows = registry.rows(str(found.name), kind=Kind.PRUNE)
    keys = registry.keys() if rows else None
    mine = (row for row in rows if (row.version, row.version_created) == numbers)
    return next((row for row in mine if keys is not None and holds(row, keys)), None)


def refuse_pruned(found: ModelVersion, said: str) -> None:
    """Raise UsageError for a version whose files were given up: nobody may promote it, not even by hand. `said`: what
    its registry says of that."""
    if said:
        raise UsageError(f"version {found.version} of {found.name!r}: {said}")


def in_words(row: Row) -> str:
    """When and by whom the files were given up, in the words of every refusal of a pruned version."""
    return _in_words(str(row.facts.get("time", "")), str(row.facts.get("actor", "")), f", row {row.seq} of the ledger")


def in_tags(tags: Mapping[str, str]) -> str:
    """The same where there is no ledger, from the version's tags; '' if they do not say so."""
    return _in_words(tags[PRUNED], tags.get(PRUNED_BY, "somebody")) if PRUNED in tags else ""


def _in_words(when: str, who: str, where: str = "") -> str:
    """The same from its parts."""
    return (
        f"pruned {when[:10]} by {who}{where}: its files were given up for ever; expected a version that has its files; "
        "train it again"
    )


def given_up(prunings: Iterable[Row]) -> dict[Version, dict[str, str]]:
    """Version → relative name → sha256 of its files that the rows give up."""
    found: dict[Version, dict[str, str]] = {}
    for row in prunings:
        found.setdefault(about(row), {}).update(named(row, "files"))
    return found


def released(prunings: Iterable[Row]) -> dict[str, int]:
    """Run → the last row that pruned what the run was evidence for. Nothing recorded before that row rests on the run
    any more, so it may go too; a later verdict may still need it."""
    return {run_id: row.seq for row in prunings for run_id in named(row, "runs")}


def named(row: Row, what: str) -> dict[str, str]:
    """The names with digests in a row; empty if its text is not in our format."""
    found = row.facts.get(what)
    return found if isinstance(found, dict) else {}
