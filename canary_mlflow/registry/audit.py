"""The ledger against the store: are the aliases, versions, files and metrics still those that it speaks of?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from canary_mlflow.errors import CanaryError
from canary_mlflow.ledger.chain import Damage
from canary_mlflow.ledger.install import missing_triggers
from canary_mlflow.ledger.rows import Kind, Row, parsed
from canary_mlflow.ledger.triggers import sources
from canary_mlflow.registry.accepting import TAG as ACCEPTED
from canary_mlflow.registry.act import DONE
from canary_mlflow.registry.binding import (
    Binding,
    changes,
    digest_of_all,
    file_digests,
    files_at,
    run_digests,
)
from canary_mlflow.registry.seal import changed_files
from canary_mlflow.tracking.rows import read_runs_from

if TYPE_CHECKING:
    from canary_mlflow.registry.store import GuardedStore


def against_store(guard: GuardedStore, rows: Sequence[Row], artifacts: str = "") -> Iterator[Damage]:
    """Everything in which the store differs from what its ledger says. `artifacts`: where its server keeps them."""
    with guard.engine.connect() as connection:
        missing = missing_triggers(connection)
        if set(missing) == set(sources(connection.dialect.name)):
            yield Damage(seq=None, what="there is no trigger of the guard in the database; canary db install")
            missing = []
        for name in missing:
            yield Damage(seq=None, what=f"the trigger {name} is gone from the database, or another; canary db install")
    rows = [row for row in rows if parsed(row.body)]  # the others are named for what they are by the check of the chain
    yield from aliases(guard, rows)
    yield from shown(guard, rows)
    newest = {about(row): row for row in rows if row.grants}
    seals = {about(row): row for row in reversed(rows) if row.kind == Kind.SEAL}  # the first one is the seal
    for row in newest.values():
        try:
            yield from (Damage(seq=row.seq, what=what) for what in bound(guard, row, seals.get(about(row)), artifacts))
        except (AttributeError, KeyError, TypeError, ValueError):  # a JSON object that is no row of ours
            yield Damage(seq=row.seq, what="its text does not say what a row of its kind says")


def about(row: Row) -> tuple[str, int, int]:
    """The version that a row is about, and no other that had its number."""
    return row.model, row.version, row.version_created


def aliases(guard: GuardedStore, rows: Sequence[Row]) -> Iterator[Damage]:
    """Guarded aliases that do not name the version that the ledger moved them to."""
    last = {(row.model, row.alias): row for row in rows if row.moves}
    held = dict(guard.all_guarded_holders())
    for (model, alias), row in last.items():
        now = held.pop((model, alias), None)
        if now != row.version:
            found = "nothing" if now is None else f"version {now}"
            yield Damage(seq=row.seq, what=f"{alias} of {model!r} is {found}; the ledger says version {row.version}")
    for (model, alias), now in held.items():
        yield Damage(
            seq=None, what=f"{alias} of {model!r} is version {now}; the ledger has no row that made it so; canary adopt"
        )


def shown(guard: GuardedStore, rows: Sequence[Row]) -> Iterator[Damage]:
    """Tags of versions that say something else than the ledger: its newest word, and who acted by hand."""
    newest: dict[tuple[str, int, int, str], tuple[Row, str]] = {}
    for row in rows:
        if row.kind == Kind.FACTS:
            newest[*about(row), f"{ACCEPTED}_by"] = row, str((parsed(row.body) or {}).get("actor"))
        if not row.alias:  # a seal, a policy, a request, accepted facts: no verdict
            continue
        newest[*about(row), "canary.verdict"] = row, row.word
        if row.kind in DONE:
            newest[*about(row), f"canary.{DONE[Kind(row.kind)]}_by"] = row, str(row.facts.get("actor"))
    tags = guard.shown()
    versions = {(model, version) for model, version, _, _ in newest}
    there = {one: guard.version_row(*one) for one in versions}
    for (model, version, created, key), (row, value) in newest.items():
        found = there[model, version]
        says = tags.get((model, version), {}).get(key)
        if found is not None and found.creation_time == created and says != value:
            what = f"tag {key} of version {version} of {model!r} is {says!r}; the ledger says {value!r}"
            yield Damage(seq=row.seq, what=what)


def bound(guard: GuardedStore, row: Row, seal: Row | None, artifacts: str) -> Iterator[str]:
    """What changed of the version that a row speaks of, each file by its name where a seal names them; a version that
    was deleted as MLflow deletes is no fault."""
    version = guard.version_row(row.model, row.version)
    if version is None or version.creation_time != row.version_created:
        return
    facts = row.facts
    subject = f"version {row.version} of {row.model!r}"
    place = str(version.storage_location or version.source)
    try:
        with files_at(place, artifacts) as folder:
            files = file_digests(folder)
        now = Binding(
            version_created=row.version_created,
            source=str(version.source),
            artifact=digest_of_all(files),
            runs=run_digests(read_runs_from(guard.tracking_uri, list(facts.get("runs") or {}))),
        )
    except CanaryError as error:
        yield f"{subject}: {error}"
        return
    sealed = changed_files(seal.facts["files"], files) if seal else []
    yield from (f"{subject}: {what} since it was sealed" for what in sealed)
    if sealed:
        facts = {**facts, "artifact": now.artifact}  # said already, by the files' names
    yield from (f"{subject}: {what}" for what in changes(facts, now))
