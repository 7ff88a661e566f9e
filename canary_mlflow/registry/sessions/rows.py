"""A session in the ledger: a row when it begins, one when it has ended, and one for runs that joined it later.

The rows after the first name every run with the digest of what the judge reads of it, as the store had it then. Whoever
signs a row reads its content from the store: on a server, the server.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from mlflow.exceptions import MlflowException

from canary_mlflow import tags
from canary_mlflow.errors import CanaryError, StoreError, UsageError, one_line
from canary_mlflow.gates.facts.check import recipe
from canary_mlflow.ledger.chain import Kind, Record, Row, digest
from canary_mlflow.registry.actors import current_actor
from canary_mlflow.registry.acts.act import DONE
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.binding import (
    digest_of_all,
    file_digests,
    files_at,
    folder_digests,
    is_same_run,
    run_digests,
)
from canary_mlflow.registry.guard.trained import recorded
from canary_mlflow.tracking.reading.histories import read_found, trainings
from canary_mlflow.tracking.stores.session import children_of, get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

    from canary_mlflow.gates.model.records import Run
    from canary_mlflow.registry.backends.registry import Registry


class Word(StrEnum):
    """What a row of a session reports."""

    BEGUN = "begun"
    ORDERED = "ordered"  # a run of the champion's code, before it starts (orders.py)
    ADDED = "added"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class Named:
    """A run as a row names it.

    `digest`: of its series and facts (binding.run_digest). `role`: run, or baseline if a row had ordered it. `beside`:
    the champion whose code it repeats, or "". `whole`: it had sent everything; otherwise the rest may still be
    delivered, until the run is judged. `row`: the number of the row.
    """

    digest: str
    role: str
    seed: str
    beside: str
    failure: str
    deleted: bool
    whole: bool
    row: int = 0


def begin(client: MlflowClient, session_id: str, model: str) -> None:
    """Record that a session for this model has begun. Does nothing if the registry has no ledger."""
    _quietly(client, session_id, model, Word.BEGUN)


def record_runs(client: MlflowClient, session_id: str, model: str) -> None:
    """Record the runs of a session: at its end all of them, later those that have joined since."""
    _quietly(client, session_id, model, Word.ENDED)


def _quietly(client: MlflowClient, session_id: str, model: str, word: Word) -> None:
    """Write the row, but let no failure stop a training: the guard asks for the row before a verdict."""
    import sqlalchemy as sa

    try:
        write(client, session_id, model, word)
    except (CanaryError, MlflowException, sa.exc.SQLAlchemyError) as error:
        if sys.stderr is not None:
            said = f"canary: session {session_id}: no row in the ledger that it has {word}: {one_line(error)}\n"
            with suppress(OSError, ValueError):  # nobody reads stderr any more
                sys.stderr.write(said)


def write(client: MlflowClient, session_id: str, model: str, word: Word) -> None:
    """Write the row, unless the ledger already has all of it. Raises UsageError, StoreError, Refused."""
    registry = registry_of(client)
    body = {"model": model, "session": session_id, "word": str(word)}
    registry.do("sessions", body, here=partial(record, registry, session_id, model, word), there=lambda _: None)


def record(registry: Registry, session_id: str, model: str, word: Word) -> Row | None:
    """Write the row into this registry's ledger and return it; None if nothing is new, or nothing is signed there."""
    if not registry.signs:
        return None
    client = registry.client
    parent, rows = get_run(client, session_id), registry.life(session_id, model) or ()
    if word is Word.BEGUN:
        if rows:
            raise UsageError(f"session {session_id}: row {rows[0].seq} of the ledger knows it; expected a new one")
        seeds = parent.data.tags.get(tags.SEEDS, "").split()
        facts: dict[str, Any] = {"seeds": seeds, "commit": parent.data.tags.get(tags.GIT_COMMIT, "")}
        return append(registry, session_id, model, word, facts)
    over, before = any(row.word == Word.ENDED for row in rows), named_by(rows)
    found = [run for run in runs_of(client, session_id) if run.info.status not in ("RUNNING", "SCHEDULED")]
    found = [run for run in found if not elsewhere(registry, run.info.run_id, session_id)]
    now = described(client, found, beside_of(rows))
    new = {run_id: one for run_id, one in now.items() if is_new(one, before.get(run_id))}
    if over and not new:
        return None
    made = [run for run in found if now[run.info.run_id].role == "run"]
    unnamed = [run for run in made if run.info.run_id in new and run.info.run_id not in before]
    if over and unnamed:
        refuse_champion(registry, session_id, unnamed[0])
    facts = {"runs": {run_id: _plain(one) for run_id, one in new.items()}}
    read = read_found(client, made)
    facts |= {"code": digest(recipe(read)), "commit": _commit(read)}
    places = places_of(unnamed)
    facts |= {"weights": dict(weights_of(unnamed)), "places": places, "there": dict(files_in(client, places))}
    facts |= {"trained": {run.info.run_id: one for run in unnamed for one, _ in recorded(run)}}
    return append(registry, session_id, model, Word.ADDED if over else Word.ENDED, facts)


def refuse_champion(registry: Registry, session_id: str, run: MlflowRun) -> None:
    """Raise UsageError if a version became champion by this session: its runs are what the next version is compared
    with, and whoever added runs later could choose that baseline."""
    evidence = (tags.where(tags.SESSION_ID, session_id), f"run_id = {tags.quoted(session_id)}")
    searched = (registry.client.search_model_versions(text) for text in evidence)
    versions = {(one.name, one.version): one for found in searched for one in found}
    for found in versions.values():
        about = int(found.version), int(found.creation_timestamp)
        for alias in sorted({one.alias for one in registry.guarded_aliases}):
            moves = (row for row in registry.moves(found.name, alias) if (row.version, row.version_created) == about)
            if (row := next(moves, None)) is not None:
                raise UsageError(
                    f"session {session_id}: version {found.version} of {found.name!r} became {alias} by it in row "
                    f"{row.seq} of the ledger; found run {run.info.run_id}, which no row names; expected no more runs; "
                    "train them in a new session, and take that run out of this one"
                )


def append(registry: Registry, session_id: str, model: str, word: Word, facts: Mapping[str, Any]) -> Row | None:
    """Write a row about a session."""
    said = {**facts, "session": session_id, "actor": current_actor()}
    return registry.append(Record(kind=Kind.SESSION, model=model, alias=session_id, word=word, facts=said))


def runs_of(client: MlflowClient, session_id: str) -> list[MlflowRun]:
    """The runs in a session now, including those in MLflow's bin; for a run without children, that run."""
    own = get_run(client, session_id)
    found = trainings(children_of(client, own, deleted=True))
    return found or ([own] if own.data.tags.get(tags.ROLE) == "run" else [])


def beside_of(rows: Iterable[Row]) -> dict[str, str]:
    """Run id → the champion whose code it repeats, for each run that a row ordered before it began. "" for those that
    only their own tags called so, in rows from before there were orders: they are nobody's evidence."""
    said: dict[str, str] = {}
    ordered: dict[str, str] = {}
    for row in rows:
        said |= {run_id: "" for run_id, one in (row.facts.get("runs") or {}).items() if one.get("role") == "baseline"}
        ordered |= row.facts.get("ordered") or {}
    return said | ordered


def described(
    client: MlflowClient, found: Sequence[MlflowRun], beside: Mapping[str, str], read: Iterable[Run] = ()
) -> dict[str, Named]:
    """Run id → the run as it is now. `beside`: as of `beside_of`. `read`: runs whose series were already read."""
    digests = run_digests(read)
    digests |= run_digests(read_found(client, [run for run in found if run.info.run_id not in digests]))
    return {run.info.run_id: _named(run, digests[run.info.run_id], beside) for run in found}


def _named(run: MlflowRun, its_digest: str, beside: Mapping[str, str]) -> Named:
    said = run.data.tags
    return Named(
        digest=its_digest,
        role="baseline" if run.info.run_id in beside else "run",
        seed=said.get(tags.SEED, ""),
        beside=beside.get(run.info.run_id, ""),
        failure=said.get(tags.FAILURE, ""),
        deleted=run.info.lifecycle_stage != "active",
        whole=tags.ROWS_LOST in said,
    )


def _plain(one: Named) -> dict[str, Any]:
    return {key: value for key, value in asdict(one).items() if key != "row"}


def is_new(one: Named, before: Named | None) -> bool:
    """Whether a row has news about a run: no row named it yet, or what was delivered since has completed it."""
    return before is None or (not before.whole and not is_same_run(before.digest, one.digest))


def named_by(rows: Iterable[Row], about: Iterable[Row] = ()) -> dict[str, Named]:
    """Run id → the run as the ledger knows it. `about`: rows about the session's version. No later row changes a run
    that a row named as whole, a verdict judged, or an act by hand made champion."""
    found: dict[str, Named] = {}
    for row in sorted((*rows, *about), key=lambda row: row.seq):
        facts = row.facts
        if row.kind == Kind.SESSION:
            for run_id, plain in (facts.get("runs") or {}).items():
                if run_id not in found or not found[run_id].whole:
                    found[run_id] = Named(**plain, row=row.seq)
            continue
        digests = facts.get("runs") or {}
        own = digests if row.kind in DONE else (facts.get("verdict") or {}).get("candidate_runs") or ()
        for run_id in own:
            its_digest = digests.get(run_id)
            before = found.get(run_id)
            if its_digest and (before is None or not before.whole):
                found[run_id] = Named(
                    digest=its_digest, role="run", seed=before.seed if before else "", beside="", failure="",
                    deleted=False, whole=True, row=row.seq,
                )  # fmt: skip
    return found


def elsewhere(registry: Registry, run_id: str, session_id: str) -> Row | None:
    """The row by which the run belongs to another session; None if there is none."""
    naming = registry.rows(kind=Kind.SESSION, naming=run_id, everywhere=True)
    rows = (row for row in naming if row.alias != session_id)
    return next((row for row in rows if run_id in (row.facts.get("runs") or {})), None)


def weights_of(runs: Iterable[MlflowRun]) -> Iterator[tuple[str, str]]:
    """For each run with saved weights: its id, and the digest of their files."""
    for run in runs:
        with suppress(StoreError):  # nothing can be registered from an unreadable place
            with files_at(f"{run.info.artifact_uri}/model") as place:
                digests = file_digests(place)
            if digests:
                yield run.info.run_id, digest_of_all(digests)


def files_in(client: MlflowClient, places: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """For each run with a readable place of its own: its id, and by folder below that the digest of its files."""
    for run_id, place in places.items():
        with suppress(StoreError, UsageError), files_at(place, store=str(client.tracking_uri)) as folder:
            yield run_id, folder_digests(file_digests(folder))


def places_of(runs: Iterable[MlflowRun]) -> dict[str, str]:
    """Run id → where its files are, for each run that vouches for files outside its own folder."""
    tagged = {run.info.run_id: run.data.tags.get(tags.MODEL_SOURCE, "") for run in runs}
    return {run_id: place for run_id, place in tagged.items() if place}


def _commit(runs: Iterable[Run]) -> str:
    """The commit that the runs recorded; "" if they recorded none, or several."""
    found = {run.environment.get("git_commit", "") for run in runs}
    return found.pop() if len(found) == 1 else ""


def moved_to(run: MlflowRun) -> str:
    """The session that a run is in now."""
    return str(run.data.tags.get(tags.PARENT_RUN, ""))
