"""Large files of versions that nobody needs any more: first a signed row that gives them up, then they are removed.

In that order: a file that is gone without a row is damage. What is left after a row, because somebody killed the
process, the next call removes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import NoSuchRun, StoreError, UsageError
from canary_mlflow.ledger.rows import Kind
from canary_mlflow.registry.actors import current_actor, refuse_stranger
from canary_mlflow.registry.binding import Binding, digest_of_all, file_digests, files_at, run_digests
from canary_mlflow.registry.door import record
from canary_mlflow.registry.needed import Known, Terms, every_version, read_model, why_it_goes, why_it_stays
from canary_mlflow.registry.origin import is_within
from canary_mlflow.registry.profiled import PROFILE_OF_TAG
from canary_mlflow.registry.pruned import BESIDE, BY_TAG, TAG, row_of
from canary_mlflow.registry.records import session_of
from canary_mlflow.registry.remote import ask, is_guarded_server
from canary_mlflow.registry.seal import changed_files, sealed_facts
from canary_mlflow.registry.server_files import behind_server
from canary_mlflow.registry.versions import SESSION_TAG, find_version, quoted
from canary_mlflow.tracking.histories import read_found
from canary_mlflow.tracking.large_files import Large, find_large, refuse_undeletable, remove
from canary_mlflow.tracking.places import without_password
from canary_mlflow.tracking.session import child_runs, get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.ledger.rows import Row

ROUTE = "prunings"
OPEN = ("RUNNING", "SCHEDULED")


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What becomes of a version's large files. `files`, `bytes`: of what goes, or has gone. `row`: of the ledger, where
    it gives them up."""

    model: str
    version: str
    goes: bool
    why: str
    files: int = 0
    bytes: int = 0
    row: int | None = None


@dataclass(frozen=True, kw_only=True)
class Content:
    """A version with the runs behind it and their large files. `place`: where its own files are; `roots`: the artifacts
    of each run."""

    found: ModelVersion
    place: str
    runs: Sequence[MlflowRun]
    roots: Sequence[str]
    files: Sequence[Large]

    def own(self) -> dict[str, Large]:
        """Those that are the version's: its name below the place → the file."""
        whole = {one: plain(one.place) for one in self.files}
        return {
            posixpath.relpath(address, plain(self.place)): one
            for one, address in whole.items()
            if is_within(address, self.place)
        }


def plan(client: MlflowClient, model: str, terms: Terms, artifacts: str = "") -> list[Fate]:
    """What would go of a model and what stays, each version with the reason; the newest first. Nothing is written.

    `artifacts`: where a server keeps what it serves, for its database. Raises NoSuchModel, StoreError.
    """
    if is_guarded_server(client):
        answer = ask(client, "POST", ROUTE, {"model": model, **asdict(terms)}) or {}
        return [fate_from(one) for one in answer["versions"]]
    known = read_model(client, model)
    newest_first = sorted(known.versions.values(), key=lambda one: -int(one.version))
    weighed = (weigh(client, known, found, terms, artifacts)[0] for found in newest_first)
    return [fate for fate in weighed if not fate.goes or fate.files]


def prune(
    client: MlflowClient, model: str, version: str, terms: Terms, artifacts: str = "", *, actor: str | None = None
) -> Fate:
    """Give up and remove the large files of one version. Raises UsageError where it stays by now, or where its files
    are not those that were sealed; Refused for somebody who is not allowed to; StoreError, before the row is written,
    where the store does not let files go."""
    if is_guarded_server(client):
        answer = ask(client, "POST", ROUTE, {"model": model, "version": version, **asdict(terms)}) or {}
        return fate_from(answer["pruned"])
    known, who = read_model(client, model), actor or current_actor()
    subject = f"version {version} of {model!r}"
    if known.guard is not None:
        refuse_stranger(known.guard.operators, who, f"files of {subject}")
    fate, content = weigh(client, known, find_version(client, model, version), terms, artifacts)
    if content is None or not fate.goes:
        raise UsageError(f"{subject}: it stays: {fate.why}; expected one that canary prune names as one that goes")
    row = row_of(known.guard, content.found) if known.guard is not None else None
    given = sealed_now(known, content, row, artifacts)
    refuse_undeletable(content.files, client.tracking_uri)
    if row is None and version not in known.pruned:
        row = give_up(client, known, content, fate, given, who)
    try:
        remove(content.files, client.tracking_uri)
    except StoreError as error:
        where = f"row {row.seq} of the ledger gives the files up, " if row is not None else ""
        raise StoreError(f"{where}{error}") from error
    return replace(fate, row=None if row is None else row.seq)


def fate_from(plain_values: Mapping[str, Any]) -> Fate:
    """As a server reports it."""
    return Fate(**{one.name: plain_values[one.name] for one in fields(Fate)})


def weigh(
    client: MlflowClient, known: Known, found: ModelVersion, terms: Terms, artifacts: str
) -> tuple[Fate, Content | None]:
    """The fate of a version, with its files where they may go."""
    fate = Fate(model=known.model, version=str(found.version), goes=False, why=why_it_stays(known, found, terms))
    if fate.why:
        return fate, None
    content = content_of(client, found, artifacts)
    if why := in_use(client, content):
        return replace(fate, why=why), None
    size = sum(one.size for one in content.files)
    why = why_it_goes(known, found, terms)
    return replace(fate, goes=True, why=why, files=len(content.files), bytes=size), content


def content_of(client: MlflowClient, found: ModelVersion, artifacts: str) -> Content:
    """The runs behind a version, deleted ones too, and what takes room in them."""
    place = behind_server(client.get_model_version_download_uri(found.name, found.version), artifacts)
    runs, files = runs_behind(client, found), []
    roots = [behind_server(str(run.info.artifact_uri), artifacts) for run in runs]
    for run, root in zip(runs, roots, strict=True):
        inside = is_within(place, root) and plain(place) != plain(root)
        own = [posixpath.relpath(plain(place), plain(root))] if inside else []
        files += find_large(run.info.run_id, root, client.tracking_uri, own)
    return Content(found=found, place=place, runs=runs, roots=roots, files=files)


def runs_behind(client: MlflowClient, found: ModelVersion) -> list[MlflowRun]:
    """The session of a version, its runs, and those that only profile it; none that `mlflow gc` has taken."""
    session_id = session_of(found)
    if session_id is None:
        return []
    with suppress(NoSuchRun):
        session = get_run(client, session_id)
        profiles = client.search_runs([session.info.experiment_id], f"tags.`{PROFILE_OF_TAG}` = '{session_id}'")
        return [session, *child_runs(client, session_id, deleted=True), *profiles]
    return []


def in_use(client: MlflowClient, content: Content) -> str:
    """Who else needs files that are to go: a training that still writes them, a version of the same files."""
    for run in content.runs:
        if run.info.status in OPEN:
            return f"its session still runs ({run.info.run_id})"
    if content.runs and not any(is_within(content.place, root) for root in content.roots):
        return f"its files are kept elsewhere ({without_password(content.place)})"
    for user in users_of(client, content):
        if TAG not in (user.tags or {}):
            return f"version {user.version} of {user.name} has files of the same session"
    return ""


def users_of(client: MlflowClient, content: Content) -> Iterator[ModelVersion]:
    """Every other version whose evidence or files are those of this one's session: registered twice, or copied."""
    about = {(content.found.name, str(content.found.version))}
    ids = [run.info.run_id for run in content.runs]
    filters = [f"source_path LIKE '%{run_id}%'" for run_id in ids]
    if ids:
        filters.append(f"tags.`{SESSION_TAG}` = '{ids[0]}'")
        filters.append("run_id IN (" + ", ".join(f"'{run_id}'" for run_id in ids) + ")")
    filters.append(f"source_path = {quoted(f'models:/{content.found.name}/{content.found.version}')}")
    while filters:
        for user in every_version(client, filters.pop()):
            if (key := (user.name, str(user.version))) not in about:
                about.add(key)
                filters.append(f"source_path = {quoted(f'models:/{user.name}/{user.version}')}")
                yield user


def sealed_now(known: Known, content: Content, row: Row | None, artifacts: str) -> dict[str, str]:
    """Name → sha256 of the version's files that go, read now. Raises UsageError where they are not those that were
    sealed, or given up before: what somebody changed is evidence, and stays."""
    found = content.found
    with files_at(content.place, artifacts) as folder:
        now = file_digests(folder)
    if row is not None:
        gone = {name: digest for name, digest in row.facts["files"].items() if name not in now}
        since, what = f"since row {row.seq} of the ledger", changed_files(row.facts["files"], {**gone, **now})
    elif TAG in (found.tags or {}):
        return {}  # without a ledger, and begun already
    else:
        facts = sealed_facts(known.guard, found) or {"artifact": digest_of_all(now)}
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
    client: MlflowClient, known: Known, content: Content, fate: Fate, given: Mapping[str, str], who: str
) -> Row | None:
    """The row; without a ledger the tags alone."""
    found = content.found
    tags = {TAG: datetime.now(UTC).isoformat(timespec="seconds"), BY_TAG: who}
    if known.guard is None:
        for key, value in tags.items():
            client.set_model_version_tag(found.name, found.version, key, value)
        return None
    return record(known.guard, order_of(client, known, content, fate, given, who, tags))


def order_of(
    client: MlflowClient,
    known: Known,
    content: Content,
    fate: Fate,
    given: Mapping[str, str],
    who: str,
    tags: Mapping[str, str],
) -> Any:
    """The row that is to be written, about no alias. `runs`: those behind the version, which may go from here on."""
    from canary_mlflow.registry.promotion import Order

    found, own = content.found, set(content.own().values())
    seen = [run for run in content.runs if run.data.tags.get("canary.role") in ("run", "baseline")]
    binding = Binding(
        version_created=int(found.creation_timestamp),
        source=str(found.source),
        artifact=digest_of_all(given),
        runs=run_digests(read_found(client, seen)),
    )
    return Order(
        kind=Kind.PRUNE,
        model=str(found.name),
        version=str(found.version),
        word="pruned",
        binding=binding,
        actor=who,
        reason=fate.why,
        grants=False,
        moves=False,
        alias="",
        facts={
            "files": dict(given),
            "others": [f"{one.run_id}/{one.path}" for one in content.files if one not in own],
            "bytes": fate.bytes,
            "session": session_of(found),
            BESIDE: str(known.standing),
        },
        tags=tags,
    )


def plain(uri: str) -> str:
    """An address without what only says that it is a file's."""
    return posixpath.normpath(uri.removeprefix("file://"))
