"""Large files that nobody needs any more: which they are, who needs the others, and their removal.

For a version, a signed row gives them up first. The order matters: a file of a version that is gone without a row is
damage. If the process is killed after the row, the next call removes what is left.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchRun, StoreError, UsageError
from canary_mlflow.ledger.chain import Kind
from canary_mlflow.registry.actors import current_actor, refuse_stranger
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.binding import digest_of_all, file_digests, files_at, run_digests
from canary_mlflow.registry.guard.order import Binding, Order
from canary_mlflow.registry.guard.origin import behind_server, is_within, out_of_reach
from canary_mlflow.registry.guard.seal import changed_files
from canary_mlflow.registry.pruning.needed import (
    Known,
    Terms,
    every_version,
    read_model,
    why_it_goes,
    why_it_stays,
)
from canary_mlflow.registry.pruning.pruned import BESIDE, row_of
from canary_mlflow.registry.sessions.rows import elsewhere
from canary_mlflow.registry.versions import find_version, session_of
from canary_mlflow.tags import PRUNED, PRUNED_BY, ROLE
from canary_mlflow.tracking.reading.histories import read_found
from canary_mlflow.tracking.reading.large_files import Large, find_large, refuse_undeletable, remove
from canary_mlflow.tracking.stores.places import without_password
from canary_mlflow.tracking.stores.session import child_runs, get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.ledger.chain import Row
    from canary_mlflow.registry.backends.registry import Registry


OPEN = ("RUNNING", "SCHEDULED")


@dataclass(frozen=True, kw_only=True)
class Content:
    """A version's runs, their large files, where its own files are (`place`), and those of each run (`roots`)."""

    found: ModelVersion
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
    client: MlflowClient, found: ModelVersion, place: str, runs: Sequence[MlflowRun], artifacts: str
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
    if content.runs and not any(is_within(content.place, root) for root in content.roots):
        return f"its files are kept elsewhere ({without_password(content.place)})"
    for user in users_of(client, content):
        if tags.PRUNED not in (user.tags or {}):
            return f"version {user.version} of {user.name} has files of the same session"
    return ""


def users_of(client: MlflowClient, content: Content) -> Iterator[ModelVersion]:
    """Every other version with evidence or files from these runs: registered twice, or copied."""
    ids, found = [run.info.run_id for run in content.runs], content.found
    about = {(found.name, str(found.version))}
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


ROUTE = "prunings"
WORD = "pruned"


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What happens to the large files of a version. `files`, `bytes`: number and size of what goes, or has gone. `row`:
    the ledger's row that gives them up."""

    model: str
    version: str
    session: str | None
    goes: bool
    why: str
    files: int = 0
    bytes: int = 0
    row: int | None = None


def plan(client: MlflowClient, model: str, terms: Terms, artifacts: str = "") -> list[Fate]:
    """What of a model's versions would go and what stays, with the reasons, newest first. Nothing is written.

    `artifacts`: where the server behind this database keeps its artifacts. Raises NoSuchModel, StoreError.
    """
    return registry_of(client).do(
        ROUTE,
        {"model": model, **asdict(terms)},
        here=lambda: plan_here(client, model, terms, artifacts),
        there=lambda answer: [fate_from(one) for one in answer["fates"]],
    )


def plan_here(client: MlflowClient, model: str, terms: Terms, artifacts: str) -> list[Fate]:
    """The same where the database is."""
    known = read_model(client, model)
    fates = [fate_of(client, known, one, terms, artifacts)[0] for one in known.newest_first()]
    return [fate for fate in fates if not fate.goes or fate.files]


def prune(
    client: MlflowClient,
    model: str,
    terms: Terms,
    artifacts: str = "",
    *,
    version: str,
    actor: str | None = None,
) -> Fate:
    """Give up and remove the large files of one version. Raises UsageError if it must stay by now, or if its files are
    not those that were sealed; Refused for somebody who is not allowed to prune; StoreError, before the row is written,
    if the store does not let files be deleted."""
    return registry_of(client).do(
        ROUTE,
        {"model": model, "version": version, **asdict(terms)},
        here=lambda: prune_here(client, model, terms, artifacts, version, actor or current_actor()),
        there=lambda answer: fate_from(answer["pruned"]),
    )


def prune_here(client: MlflowClient, model: str, terms: Terms, artifacts: str, version: str, who: str) -> Fate:
    """The same where the database is."""
    known, subject = read_model(client, model), f"version {version} of {model!r}"
    refuse_stranger(known.registry.operators, who, f"files of {subject}")
    found = find_version(client, model, version)
    fate, content = fate_of(client, known, found, terms, artifacts)
    if content is None:
        raise UsageError(f"{subject}: it stays: {fate.why}; expected what canary prune names as going")
    row = row_of(known.registry, found)
    given = sealed_now(known, found, content, row, artifacts)
    refuse_undeletable(content.files, client.tracking_uri)
    if row is None and version not in known.pruned:
        row = give_up(known, found, content, fate, given, who)
    try:
        remove(content.files, client.tracking_uri)
    except StoreError as error:
        where = f"row {row.seq} of the ledger gives the files up, " if row is not None else ""
        raise StoreError(f"{where}{error}") from error
    return replace(fate, row=None if row is None else row.seq)


def fate_from(plain_values: Mapping[str, Any]) -> Fate:
    """The fate as a server reports it."""
    return Fate(**{one.name: plain_values[one.name] for one in fields(Fate)})


def fate_of(
    client: MlflowClient, known: Known, found: ModelVersion, terms: Terms, artifacts: str
) -> tuple[Fate, Content | None]:
    """The fate of a version, with its files if they may go."""
    why = why_it_stays(known, found, terms)
    fate = Fate(model=known.model, version=str(found.version), session=session_of(found), goes=False, why=why)
    if why:
        return fate, None
    place = behind_server(client.get_model_version_download_uri(found.name, found.version), artifacts)
    content = content_of(client, found, place, runs_behind(known.registry, fate.session), artifacts)
    if why := in_use(client, content):
        return replace(fate, why=why), None
    size = sum(one.size for one in content.files)
    why = why_it_goes(known, found, terms)
    return replace(fate, goes=True, why=why, files=len(content.files), bytes=size), content


def sealed_now(known: Known, found: ModelVersion, content: Content, row: Row | None, artifacts: str) -> dict[str, str]:
    """Name → sha256 of the version's files that go, read now. Raises UsageError if they are not those that were sealed,
    or given up before: changed files are evidence, and stay."""
    with files_at(content.place, artifacts) as folder:
        now = file_digests(folder)
    if row is not None:
        gone = {name: digest for name, digest in row.facts["files"].items() if name not in now}
        since, what = f"since row {row.seq} of the ledger", changed_files(row.facts["files"], {**gone, **now})
    elif PRUNED in (found.tags or {}):
        return {}  # without a ledger, and already begun
    else:
        facts = known.registry.seal(found) or {"artifact": digest_of_all(now)}
        what = changed_files(facts["files"], now) if "files" in facts else []
        if not what and facts["artifact"] != digest_of_all(now):
            what = ["its files changed"]
        since = "since it was sealed"
    for one in what:
        raise UsageError(
            f"version {found.version} of {found.name!r}: {one} {since}; expected those files, so nothing of it was "
            "removed; see: canary audit verify"
        )
    own = content.own()
    return {name: digest for name, digest in now.items() if name in own}


def give_up(
    known: Known, found: ModelVersion, content: Content, fate: Fate, given: Mapping[str, str], who: str
) -> Row | None:
    """Record that a version's files are given up: write the row and return it; without a ledger, only set tags."""
    registry = known.registry
    tags = {PRUNED: datetime.now(UTC).isoformat(timespec="seconds"), PRUNED_BY: who}
    own = set(content.own().values())
    seen = [run for run in content.runs if run.data.tags.get(ROLE) in ("run", "baseline")]
    facts: dict[str, Any] = {
        "files": dict(given),
        "others": [f"{one.run_id}/{one.path}" for one in content.files if one not in own],
        "bytes": fate.bytes,
        "session": fate.session,
        BESIDE: str(known.standing),
    }
    binding = Binding(
        version_created=int(found.creation_timestamp),
        source=str(found.source),
        artifact=digest_of_all(given),
        runs=run_digests(read_found(registry.client, seen)) if registry.signs else {},
    )
    order = Order(
        kind=Kind.PRUNE,
        model=known.model,
        version=str(found.version),
        word=WORD,
        binding=binding,  # its runs are those behind the version, which may go from now on
        actor=who,
        reason=fate.why,
        facts=facts,
        tags=tags,
    )
    return registry.record(order)
