"""Versions whose files were given up to free their space: what the ledger says of them, and what they cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from canary_mlflow.errors import UsageError
from canary_mlflow.ledger.rows import Row, holds

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.registry.store import GuardedStore

Version = tuple[str, str, int, int]  # as a row is about it: workspace, model, number, creation time
TAG = "canary.pruned"  # when; where there is no ledger, all that there is
BY_TAG = f"{TAG}_by"
BESIDE = "beside"  # in a row: the champion that was seen when its files were found to be needed no more


def about(row: Row) -> Version:
    """The version that a row is about, and no other that had its number."""
    return row.workspace, row.model, row.version, row.version_created


def row_of(guard: GuardedStore, found: ModelVersion) -> Row | None:
    """The row by which the version's files were given up: the first that somebody trusted has signed."""
    numbers = int(found.version), int(found.creation_timestamp)
    rows = [row for row in guard.prunings(str(found.name)) if (row.version, row.version_created) == numbers]
    keys = guard.keys() if rows else None
    return next((row for row in rows if keys is not None and holds(row, keys)), None)


def session_row(guard: GuardedStore, model: str, session_id: str) -> Row | None:
    """The row by which the files of a session without a version were given up."""
    rows = [row for row in guard.prunings(model) if not row.version and row.facts.get("session") == session_id]
    keys = guard.keys() if rows else None
    return next((row for row in rows if keys is not None and holds(row, keys)), None)


def refuse_pruned(guard: GuardedStore | None, found: ModelVersion) -> None:
    """Raise UsageError for a version whose files were given up: nobody may promote it, by hand neither."""
    tags: Mapping[str, str] = found.tags or {}
    said = ""
    if guard is not None:
        row = row_of(guard, found)
        said = in_words(row) if row is not None else ""
    elif TAG in tags:
        said = told(tags[TAG], tags.get(BY_TAG, "somebody"))
    if said:
        raise UsageError(f"version {found.version} of {found.name!r}: {said}")


def in_words(row: Row) -> str:
    """When and by whom, as every refusal of a pruned version says it."""
    return told(str(row.facts.get("time", "")), str(row.facts.get("actor", "")), f", row {row.seq} of the ledger")


def told(when: str, who: str, where: str = "") -> str:
    """The same from its parts."""
    return (
        f"pruned {when[:10]} by {who}{where}: its files were given up for ever; expected a version that has its files; "
        "train it again"
    )


def given_up(prunings: Iterable[Row]) -> dict[Version, dict[str, str]]:
    """Version → relative name → sha256 of the files of it that rows give up."""
    found: dict[Version, dict[str, str]] = {}
    for row in prunings:
        found.setdefault(about(row), {}).update(named(row, "files"))
    return found


def released(prunings: Iterable[Row]) -> dict[str, int]:
    """Run → the last row that pruned what it was behind: nothing from before that row will rest on it, so that it may
    go too. What was judged by it only afterwards is another matter."""
    return {run_id: row.seq for row in prunings for run_id in named(row, "runs")}


def named(row: Row, what: str) -> dict[str, str]:
    """Names with digests in a row; none where its text is another's."""
    found = row.facts.get(what)
    return found if isinstance(found, dict) else {}
