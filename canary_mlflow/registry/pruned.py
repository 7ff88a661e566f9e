"""Versions whose files were given up to free their space: what the ledger says of them, and what they cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from canary_mlflow.errors import UsageError
from canary_mlflow.ledger.rows import Row, holds

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.registry.store import GuardedStore

TAG = "canary.pruned"  # when; where there is no ledger, all that there is
BY_TAG = f"{TAG}_by"
BESIDE = "beside"  # in a row: the champion that was seen when its files were found to be needed no more


def row_of(guard: GuardedStore, found: ModelVersion) -> Row | None:
    """The row by which the version's files were given up: the first that somebody trusted has signed."""
    about = int(found.version), int(found.creation_timestamp)
    rows = [row for row in guard.prunings(str(found.name)) if (row.version, row.version_created) == about]
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


def given_up(rows: Iterable[Row], about: Row) -> dict[str, str]:
    """Relative name → sha256 of the files that rows give up of the version that another row is about."""
    mine = (row for row in rows if is_about_the_same(row, about))
    return {name: digest for row in mine for name, digest in row.facts["files"].items()}


def is_about_the_same(row: Row, other: Row) -> bool:
    """Whether two rows are about one version."""
    columns = ("workspace", "model", "version", "version_created")
    return all(getattr(row, name) == getattr(other, name) for name in columns)


def released(rows: Iterable[Row], after: int) -> set[str]:
    """The runs behind versions that were pruned beyond a row: nothing will rest on them, so that they may go too. What
    was judged by them only afterwards is another matter."""
    runs = (row.facts.get("runs") for row in rows if row.seq > after)
    return {run_id for one in runs if isinstance(one, dict) for run_id in one}
