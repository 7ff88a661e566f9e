"""What could be pruned: the large files of the runs behind a version, or of a session without one, and who needs
them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchRun, UsageError
from canary_mlflow.registry.guard.origin import behind_server, is_within, out_of_reach
from canary_mlflow.registry.pruning.needed import every_version
from canary_mlflow.registry.sessions.rows import elsewhere
from canary_mlflow.tracking.reading.large_files import Large, find_large
from canary_mlflow.tracking.stores.places import without_password
from canary_mlflow.tracking.stores.session import child_runs, get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.registry.backends.registry import Registry

OPEN = ("RUNNING", "SCHEDULED")


@dataclass(frozen=True, kw_only=True)
class Content:
    """Runs and their large files, of a version or of a session without one. `place`: where the version's own files are.
    `roots`: where the artifacts of each run are."""

    found: ModelVersion | None
    place: str
    runs: Sequence[MlflowRun]
    roots: Sequence[str]
    files: Sequence[Large]

    def own(self) -> dict[str, Large]:
        """The version's own files: name below `place` → file."""
        whole = {one: without_scheme(one.place) for one in self.files}
        return {
            posixpath.relpath(address, without_scheme(self.place)): one
            for one, address in whole.items()
            if is_within(address, self.place)
        }


def content_of(
    client: MlflowClient, found: ModelVersion | None, place: str, runs: Sequence[MlflowRun], artifacts: str
) -> Content:
    """The large files of these runs. Raises UsageError if only their server knows where they are."""
    files: list[Large] = []
    roots = [behind_server(str(run.info.artifact_uri), artifacts) for run in runs]
    for run, root in zip(runs, roots, strict=True):
        if said := out_of_reach(root, artifacts, client.tracking_uri):
            raise UsageError(said)
        inside = is_within(place, root) and without_scheme(place) != without_scheme(root)
        own = [posixpath.relpath(without_scheme(place), without_scheme(root))] if inside else []
        files += find_large(run.info.run_id, root, client.tracking_uri, own)
    return Content(found=found, place=place, runs=runs, roots=roots, files=files)


def runs_behind(registry: Registry, session_id: str | None) -> list[MlflowRun]:
    """A session, its runs, deleted ones too, and those that only profile it. Without runs that `mlflow gc` removed, and
    without runs that the ledger has in another session: anybody who may edit runs could claim them for this one."""
    client = registry.client
    if session_id is None:
        return []
    with suppress(NoSuchRun):
        session = get_run(client, session_id)
        profiles = client.search_runs([session.info.experiment_id], tags.where(tags.PROFILE_OF, session_id))
        others = [*child_runs(client, session_id, deleted=True), *profiles]
        return [session, *(run for run in others if elsewhere(registry, run.info.run_id, session_id) is None)]
    return []


def in_use(client: MlflowClient, content: Content) -> str:
    """Who else needs files that are to be removed: a training that still writes them, a version with the same files."""
    for run in content.runs:
        if run.info.status in OPEN:
            return f"its session still runs ({run.info.run_id})"
    if content.found is None:
        return ""
    if content.runs and not any(is_within(content.place, root) for root in content.roots):
        return f"its files are kept elsewhere ({without_password(content.place)})"
    for user in users_of(client, content):
        if tags.PRUNED not in (user.tags or {}):
            return f"version {user.version} of {user.name} has files of the same session"
    return ""


def users_of(client: MlflowClient, content: Content) -> Iterator[ModelVersion]:
    """Every other version with evidence or files from these runs: registered twice, or copied."""
    ids, found = [run.info.run_id for run in content.runs], content.found
    about = set() if found is None else {(found.name, str(found.version))}
    filters = [f"source_path = {tags.quoted(f'models:/{name}/{version}')}" for name, version in about]
    filters += [f"source_path LIKE '%{run_id}%'" for run_id in ids]
    if ids:
        filters.append(tags.where(tags.SESSION_ID, ids[0]))
        filters.append("run_id IN (" + ", ".join(f"'{run_id}'" for run_id in ids) + ")")
    while filters:
        for user in every_version(client, filters.pop()):
            if (key := (user.name, str(user.version))) not in about:
                about.add(key)
                filters.append(f"source_path = {tags.quoted(f'models:/{user.name}/{user.version}')}")
                yield user


def without_scheme(uri: str) -> str:
    """An address without the prefix that marks a file URI."""
    return posixpath.normpath(uri.removeprefix("file://"))
