"""Which versions of a model still need their files: a champion, one that a rollback may return to, an undecided one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchRun
from canary_mlflow.ledger.chain import Kind, Row
from canary_mlflow.registry.acts.rollback import former_champion
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.pruning.pruned import row_of
from canary_mlflow.registry.versions import CHAMPION, find_model
from canary_mlflow.tracking.stores.session import get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.registry.backends.registry import Registry
    from canary_mlflow.registry.guard.order import Standing

KEEP = 2  # former champions: the one before, and the one that a second rollback goes back to


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of pruning. `keep`: how many former champions stay, at least the one that `canary rollback` returns to.
    `older_than`: days; any younger version stays."""

    keep: int = KEEP
    older_than: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Known:
    """A model as it was read. `names`: version → the aliases that name it. `former`: the champions before the current
    one, newest first. `requests`: version → the row that asks for its override. `standing`: who is champion, by which
    row. `pruned`: version → the row that gave up its files, 0 without a ledger."""

    registry: Registry
    model: str
    versions: Mapping[str, ModelVersion]
    names: Mapping[str, Sequence[str]]
    former: Sequence[str]
    requests: Mapping[str, int]
    pruned: Mapping[str, int]
    standing: Standing

    def newest_first(self) -> list[ModelVersion]:
        """The versions in the order in which they are shown."""
        return sorted(self.versions.values(), key=lambda one: -int(one.version))

    @property
    def champion(self) -> str | None:
        """The version that holds the alias."""
        return next((version for version, names in self.names.items() if CHAMPION in names), None)


def read_model(client: MlflowClient, model: str) -> Known:
    """Everything that decides which versions of a model stay. Raises NoSuchModel."""
    find_model(client, model)
    registry = registry_of(client)
    standing = registry.standing(model)
    names: dict[str, list[str]] = {}
    for alias, version in client.get_registered_model(model).aliases.items():
        names.setdefault(str(version), []).append(str(alias))
    versions = {str(one.version): one for one in every_version(client, f"name={tags.quoted(model)}")}
    champion = next((version for version, held in names.items() if CHAMPION in held), None)
    if registry.signs:
        moves = registry.moves(model)
        before = {str(row.version): former_champion(moves, str(row.version)) for row in moves}
        rows = {version: row_of(registry, one) for version, one in versions.items()}
        pruned = {version: row.seq for version, row in rows.items() if row is not None}
    else:
        said = {version: (one.tags or {}).get(tags.BASELINE_VERSION) for version, one in versions.items()}
        before = {version: at for version, at in said.items() if at in versions}
        pruned = {version: 0 for version, one in versions.items() if tags.PRUNED in (one.tags or {})}
    return Known(
        registry=registry,
        model=model,
        versions=versions,
        names=names,
        former=chain(champion, before),
        requests=open_requests(registry.rows(model), versions),
        pruned=pruned,
        standing=standing,
    )


def ours(client: MlflowClient) -> list[str]:
    """The models with a version that this project registered or judged."""
    return sorted(
        {one.name for one in every_version(client, "") if any(key.startswith(tags.OURS) for key in one.tags or {})}
    )


def every_version(client: MlflowClient, text: str) -> list[ModelVersion]:
    """All versions that a filter finds."""
    found: list[ModelVersion] = []
    page = None
    while True:
        answer = client.search_model_versions(text, max_results=1000, page_token=page)
        found += answer
        if not (page := answer.token):
            return found


def chain(champion: str | None, before: Mapping[str, str | None]) -> list[str]:
    """The versions that one rollback after another would return to."""
    found: list[str] = []
    at = before.get(champion or "")
    while at is not None and at not in (champion, *found):
        found.append(at)
        at = before.get(at)
    return found


def open_requests(rows: Sequence[Row], versions: Mapping[str, ModelVersion]) -> dict[str, int]:
    """Version → the row that asked for its override, if no verdict or act on it came later."""
    newest = {(str(row.version), row.version_created): row for row in rows if row.kind not in (Kind.SEAL, Kind.FACTS)}
    asked = {about: row.seq for about, row in newest.items() if row.kind == Kind.REQUEST}
    return {
        version: asked[version, int(one.creation_timestamp)]
        for version, one in versions.items()
        if (version, int(one.creation_timestamp)) in asked
    }


def why_it_stays(known: Known, found: ModelVersion, terms: Terms) -> str:
    """Why a version needs its files, in a few words; "" for one that may go."""
    version, said = str(found.version), found.tags or {}
    word = said.get(tags.VERDICT)
    if version in known.pruned:
        return ""  # decided for good
    if names := known.names.get(version):
        return " and ".join(sorted(names))
    if version in known.former[: terms.keep]:
        return "former champion; canary rollback may return to it"
    if word in (None, "INCONCLUSIVE"):
        return "not judged yet" if word is None else "INCONCLUSIVE: not decided"
    if version in known.requests:
        return f"its override is asked for in row {known.requests[version]} of the ledger"
    if word == "PASS" and tags.NOT_PROMOTABLE not in said and is_newer(version, known.champion):
        return "PASS, newer than the champion"
    if time.time() - int(found.creation_timestamp) / 1000 < timedelta(days=terms.older_than).total_seconds():
        return f"younger than {terms.older_than:g} days"
    return ""


def why_it_goes(known: Known, found: ModelVersion, terms: Terms) -> str:
    """Why nobody needs the files of a version that does not stay, in a few words."""
    version = str(found.version)
    if version in known.pruned:
        row = known.pruned[version]
        return f"given up in row {row} of the ledger, to be finished" if row else "given up, to be finished"
    if version in known.former:
        return f"former champion, before the {terms.keep} that stay"
    word = str((found.tags or {}).get(tags.VERDICT))
    return word if word == "BLOCK" else f"{word}, and not the champion"


def is_newer(version: str, champion: str | None) -> bool:
    """Whether a version was registered after the champion."""
    return champion is None or int(version) > int(champion)


def experiments_of(client: MlflowClient, run_ids: Iterable[str | None]) -> list[str]:
    """The experiments of those runs that exist."""
    found = set()
    for run_id in filter(None, run_ids):
        with suppress(NoSuchRun):
            found.add(str(get_run(client, run_id).info.experiment_id))
    return sorted(found)
