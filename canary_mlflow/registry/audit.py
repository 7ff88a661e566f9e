"""Checks the store against the ledger: are the aliases, versions, files and metrics still those that it records?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from canary_mlflow.errors import CanaryError, UsageError
from canary_mlflow.ledger.chain import Damage, Kind, Row
from canary_mlflow.ledger.install import missing_triggers
from canary_mlflow.ledger.triggers import sources
from canary_mlflow.registry.acts.act import DONE
from canary_mlflow.registry.guard.binding import changes, digest_of_all, file_digests, files_at, run_digests
from canary_mlflow.registry.guard.evaluated import ADDED, fault_of
from canary_mlflow.registry.guard.order import Binding
from canary_mlflow.registry.guard.origin import out_of_reach
from canary_mlflow.registry.guard.seal import changed_files
from canary_mlflow.registry.pruning.pruned import about, given_up, released
from canary_mlflow.registry.workspaces import DEFAULT
from canary_mlflow.tags import FACTS_ACCEPTED, OURS, VERDICT
from canary_mlflow.tracking.reading.database import read_runs_from

if TYPE_CHECKING:
    from canary_mlflow.registry.guard.reader import Model, Reader, Version


def against_store(reader: Reader, rows: Sequence[Row], artifacts: str = "") -> Iterator[Damage]:
    """Everything in which the store differs from its ledger, in all workspaces. `artifacts`: where its server keeps
    artifacts. Rows whose text cannot be read are skipped here: the check of the chain names them."""
    with reader.open() as connection:
        missing = missing_triggers(connection)
        if set(missing) == set(sources(connection.dialect.name)):
            yield Damage(seq=None, what="there is no trigger of the guard in the database; canary db install")
            missing = []
    for name in missing:
        yield Damage(seq=None, what=f"the trigger {name} is gone from the database, or was changed; canary db install")
    rows = [row for row in rows if row.moments]
    versions = reader.versions()
    yield from aliases(reader, rows)
    for (model, alias), number in reader.holders().items():
        if (*model, number) not in versions:
            yield Damage(seq=None, what=f"{alias} of {called(model)} is version {number}, which was deleted")
    yield from shown(reader, rows, versions)
    newest = {about(row): row for row in rows if row.grants}
    prunings = [row for row in rows if row.kind == Kind.PRUNE]
    files, runs = given_up(prunings), released(prunings)
    seals = {about(row): row for row in reversed(rows) if row.kind == Kind.SEAL}  # the first one is the seal
    digests = Digests(reader.tracking)
    for row in newest.values():
        version = versions.get(about(row)[:3])
        if version is None or version.creation_time != row.version_created:
            continue  # deleted through MLflow, which is allowed
        try:
            for what in bound(
                digests, row, version, seals.get(about(row)), Gone(files.get(about(row), {}), runs), artifacts
            ):
                yield Damage(seq=row.seq, what=what)
        except (AttributeError, KeyError, TypeError, ValueError):  # a JSON object that is not one of our rows
            yield Damage(seq=row.seq, what="its text does not say what a row of its kind says")
    for row in rows:
        if row.kind == Kind.EVALS and row.word == ADDED and about(row)[:3] in versions:
            name = called((row.workspace, row.model))
            if said := fault_of(row.facts, artifacts):
                yield Damage(seq=row.seq, what=f"version {row.version} of {name}: {said}")


class Gone(NamedTuple):
    """What may be missing of a version: the digests of its files that were given up, and each run that may go, with the
    row that allows it."""

    files: Mapping[str, str]
    runs: Mapping[str, int]


def called(model: Model) -> str:
    """A model's name, with its workspace unless that is the default one."""
    workspace, name = model
    return repr(name) if workspace == DEFAULT else f"{name!r} in workspace {workspace!r}"


def aliases(reader: Reader, rows: Sequence[Row]) -> Iterator[Damage]:
    """Guarded aliases that do not name the version that the ledger moved them to."""
    last = {((row.workspace, row.model), row.alias): row for row in rows if row.moves}
    held, guarded = reader.holders(), {one.alias for one in reader.guarded()}
    for (model, alias), row in last.items():
        now = held.pop((model, alias), None)
        if now != row.version:
            free = alias not in guarded  # then nobody watches which version it names
            found = "guarded no more" if free else "nothing" if now is None else f"version {now}"
            advice = f"; canary db install --guard {alias}" if free else ""
            what = f"{alias} of {called(model)} is {found}; the ledger says version {row.version}{advice}"
            yield Damage(seq=row.seq, what=what)
    for (model, alias), now in held.items():
        what = f"{alias} of {called(model)} is version {now}; the ledger has no row that made it so; canary adopt"
        yield Damage(seq=None, what=what)


def shown(reader: Reader, rows: Sequence[Row], versions: dict[Version, Any]) -> Iterator[Damage]:
    """Tags of versions that differ from the ledger's newest verdict or act, or from who acted by hand."""
    newest: dict[tuple[str, str, int, int, str], tuple[Row, str]] = {}
    for row in rows:
        if row.kind == Kind.FACTS:
            newest[*about(row), f"{FACTS_ACCEPTED}_by"] = row, str(row.facts.get("actor"))
        if not row.alias or not row.version:  # not about a version's alias: no verdict that a tag shows
            continue
        newest[*about(row), VERDICT] = row, row.word
        if row.kind in DONE:
            newest[*about(row), f"{OURS}{DONE[Kind(row.kind)]}_by"] = row, str(row.facts.get("actor"))
    tags = reader.shown()
    for (workspace, model, version, created, key), (row, value) in newest.items():
        found = versions.get((workspace, model, version))
        says = tags.get((workspace, model, version), {}).get(key)
        if found is not None and found.creation_time == created and says != value:
            name = called((workspace, model))
            what = f"tag {key} of version {version} of {name} is {says!r}; the ledger says {value!r}"
            yield Damage(seq=row.seq, what=what)


class Digests:
    """Digests of the runs in a tracking database. Each run is read once: a champion's are part of the verdict on every
    version that was judged beside it."""

    def __init__(self, tracking: str) -> None:
        self.tracking = tracking
        self.known: dict[str, str] = {}

    def of(self, run_ids: Iterable[str]) -> dict[str, str]:
        """Run id → digest, of those that are still there."""
        asked = list(run_ids)
        self.known |= run_digests(read_runs_from(self.tracking, [one for one in asked if one not in self.known]))
        return {one: self.known[one] for one in asked if one in self.known}


def bound(digests: Digests, row: Row, version: Any, seal: Row | None, gone: Gone, artifacts: str) -> Iterator[str]:
    """What changed in the version that a row is about, with each file's name if a seal has the names. A file that was
    given up counts as unchanged, and a run behind a pruned version may be gone. Raises UsageError if nobody says where
    a server keeps the files."""
    facts = row.facts
    subject = f"version {row.version} of {called((row.workspace, row.model))}"
    if said := out_of_reach(
        str(facts.get("source")), artifacts
    ):  # as signed: who may change a source must not end this
        raise UsageError(said)
    place = str(version.storage_location or version.source)
    try:
        with files_at(place, artifacts) as folder:
            files = {**gone.files, **file_digests(folder)}
        now = Binding(
            version_created=row.version_created,
            source=str(version.source),
            artifact=digest_of_all(files),
            runs=digests.of(facts.get("runs") or ()),
        )
    except CanaryError as error:
        yield f"{subject}: {error}"
        return
    sealed = [] if seal is None else changed_files(seal.facts["files"], files)
    yield from (f"{subject}: {what} since it was sealed" for what in sealed)
    if sealed:
        facts = {**facts, "artifact": now.artifact}  # already reported, by the files' names
    then = {
        run_id: its
        for run_id, its in (facts.get("runs") or {}).items()
        if run_id in now.runs or gone.runs.get(run_id, 0) < row.seq
    }
    yield from (f"{subject}: {what}" for what in changes({**facts, "runs": then}, now))
