"""Is the evidence of a version still what its session's rows in the ledger say? A verdict covers all of it, or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from canary_mlflow.errors import NoSuchRun, UsageError
from canary_mlflow.ledger.chain import Kind, Row, holds
from canary_mlflow.registry.acts.act import DONE
from canary_mlflow.registry.guard.binding import is_same_run
from canary_mlflow.registry.sessions.rows import (
    Named,
    Word,
    beside_of,
    described,
    elsewhere,
    moved_to,
    named_by,
    runs_of,
)
from canary_mlflow.registry.versions import session_of
from canary_mlflow.tracking.reading.facts import whole
from canary_mlflow.tracking.stores.session import get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.gates.model.records import Run
    from canary_mlflow.registry.backends.registry import Registry

AGAIN = "train it again in a new session"


@dataclass(frozen=True, kw_only=True)
class Read:
    """The runs of a version's session as they were read for a verdict. `fresh`: those that repeat the code of
    `champion`; not read if that is None."""

    runs: Sequence[Run]
    fresh: Sequence[Run] = ()
    champion: str | None = None


def refuse_changed_evidence(registry: Registry, found: ModelVersion, read: Read, rows: Sequence[Row]) -> bool:
    """Raise UsageError unless the version's session has exactly the runs that the ledger names for it, unchanged, and
    all of them were read. `rows`: those about its model. Returns whether the session's end is recorded, or need not
    be."""
    session_id, subject = session_of(found), f"version {found.version} of {found.name!r}"
    if session_id is None or not registry.signs:
        return True
    client = registry.client
    about = [
        row for row in rows if (row.version, row.version_created) == (int(found.version), found.creation_timestamp)
    ]
    refuse_other_session(subject, session_id, about)
    life = registry.life(session_id, str(found.name)) or ()
    kinds, keys = (Kind.VERDICT, Kind.BOOTSTRAP, *DONE), registry.keys()
    named = named_by(life, [row for row in about if row.kind in kinds and holds(row, keys)])
    there = {run.info.run_id: run for run in runs_of(client, session_id)}
    lost = {run_id: run for run_id in named.keys() - there.keys() if (run := find(client, run_id)) is not None}
    now = described(client, list({**there, **lost}.values()), beside_of(life), (*read.runs, *read.fresh))
    ended = any(row.word == Word.ENDED for row in life)
    for fault in _faults(registry, session_id, named, {**there, **lost}, now, ended=ended):
        raise UsageError(f"{subject}: {fault}")
    for fault in read_otherwise(session_id, {**now, **named}, beside_of(life), read):
        raise UsageError(f"{subject}: {fault}")
    if seeds := missing_seeds(life, [*named.values(), *(now[run_id] for run_id in there)]):
        raise UsageError(
            f"{subject}: seed {seeds[0]} was planned when session {session_id} began (row {life[0].seq} of the ledger) "
            f"and has no run; expected one for each; {AGAIN}"
        )
    return ended


def read_otherwise(session_id: str, known: Mapping[str, Named], beside: Mapping[str, str], read: Read) -> Iterator[str]:
    """Runs that were read as something else than they are: somebody may hide one, or slip one in, just while it is
    read."""
    parts = [({run_id for run_id, one in known.items() if one.role == "run"}, read.runs)]
    if read.champion is not None:
        made = {run_id for run_id, champion in beside.items() if champion == read.champion}
        parts.append((made, read.fresh))
    for expected, found in parts:
        for run_id in sorted(expected ^ {run.run_id for run in found}):
            yield (
                f"{called_run(run_id, known[run_id]) if run_id in known else f'run {run_id}'}: it moved into or out of "
                f"session {session_id} while it was read; expected runs that stay unchanged; judge again"
            )


def refuse_changed_since(session_id: str, life: Iterable[Row], judged: Mapping[str, str]) -> None:
    """Raise UsageError if the row about a session's end, written only now, differs from what was judged: the next
    verdict would follow the row. `judged`: run id → digest."""
    for run_id, one in named_by(life).items():
        if one.role == "run" and not is_same_run(one.digest, judged.get(run_id, "")):
            raise UsageError(
                f"session {session_id}: {called_run(run_id, one)}: its metrics or facts changed while it was judged "
                f"(row {one.row} of the ledger says how they are now); expected runs that stay unchanged; judge again"
            )


def refuse_other_session(subject: str, session_id: str, about: Iterable[Row]) -> None:
    """Raise UsageError if a row about the version names another session than the version does now."""
    for row in about:
        then = row.facts.get("session")
        if then and then != session_id:
            raise UsageError(
                f"{subject}: it names session {session_id}; row {row.seq} of the ledger names {then}; expected the "
                f"same session; {AGAIN}"
            )


def _faults(
    registry: Registry,
    session_id: str,
    named: Mapping[str, Named],
    found: Mapping[str, MlflowRun],
    now: Mapping[str, Named],
    *,
    ended: bool,
) -> Iterator[str]:
    for run_id, then in sorted(named.items(), key=by_seed):
        yield from _of_named(session_id, run_id, then, found.get(run_id), now.get(run_id))
    for run_id, is_now in sorted(((run_id, now[run_id]) for run_id in found.keys() - named.keys()), key=by_seed):
        run = found[run_id]
        subject = called_run(run_id, is_now)
        if is_now.deleted:
            yield f"{subject}: deleted before a row of the ledger named it; {restored(run_id)}"
        if (row := elsewhere(registry, run_id, session_id)) is not None:
            yield (
                f"{subject}: it is in session {session_id}; row {row.seq} of the ledger has it in session {row.alias}; "
                f"expected it there; {AGAIN}"
            )
        if ended:
            yield (
                f"{subject}: it is in session {session_id} and no row of the ledger names it; expected only runs that "
                f"one names; {unnamed(run, session_id)}"
            )


def _of_named(session_id: str, run_id: str, then: Named, run: MlflowRun | None, is_now: Named | None) -> Iterator[str]:
    """What happened to a run that a row names, in words."""
    subject, by = called_run(run_id, then), f"row {then.row} of the ledger"
    if run is None or is_now is None:
        yield f"{subject}: gone; {by} names it; expected every run of session {session_id}; {AGAIN}"
    elif is_now.deleted:
        yield f"{subject}: deleted; {by} names it; {restored(run_id)}"
    elif moved_to(run) != session_id and run_id != session_id:
        yield (
            f"{subject}: its tag mlflow.parentRunId is {moved_to(run)!r}; {by} has it in session {session_id}; "
            "expected it there; set the tag back"
        )
    elif then.whole and not is_same_run(then.digest, is_now.digest):
        yield f"{subject}: its metrics or facts changed since {by}; expected them unchanged; {AGAIN}"


def by_seed(item: tuple[str, Named]) -> tuple[int, str]:
    """The sort key by which runs are named: by seed."""
    run_id, one = item
    return whole(one.seed) or 0, run_id


def called_run(run_id: str, named: Named) -> str:
    """`run 4e2c… (seed 3)`, with the whole id, so that a reader can find the run."""
    return f"run {run_id} (seed {named.seed})" if named.seed else f"run {run_id}"


def restored(run_id: str) -> str:
    """The end of a sentence about a run in MLflow's bin."""
    return f"expected every run of its session; mlflow runs restore --run-id {run_id}"


def unnamed(run: MlflowRun, session_id: str) -> str:
    """What to do about a run that no row names."""
    if run.info.status in ("RUNNING", "SCHEDULED"):
        return "it is still running: judge again when it has ended"
    return f"if it belongs there, say so: canary session add {session_id}"


def missing_seeds(life: Iterable[Row], there: Iterable[Named]) -> list[str]:
    """The seeds that a session planned but has no run of."""
    planned = next((row.facts.get("seeds") or [] for row in life if row.word == Word.BEGUN), [])
    made = {one.seed for one in there if one.role == "run"}
    return [seed for seed in planned if seed not in made]


def find(client: MlflowClient, run_id: str) -> MlflowRun | None:
    """The run, deleted or not; None if the store no longer has it."""
    try:
        return get_run(client, run_id)
    except NoSuchRun:
        return None
