"""Runs of the champion's code beside a candidate's: the side that signs orders them before they start.

What a run says of itself never makes it the champion's: whoever trains the candidate would choose what it is compared
with. Only a run that a row named while it was still empty counts, and only if it recorded what the champion's runs did
about code, packages, data and configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from canary_mlflow import tags
from canary_mlflow.errors import CanaryError, UsageError
from canary_mlflow.ledger.rows import Row
from canary_mlflow.registry.guard_client import guard_of
from canary_mlflow.registry.remote import ask, is_guarded_server
from canary_mlflow.registry.sessions.rows import Word, append, beside_of, moved_to, named_by, trusted
from canary_mlflow.registry.versions import find_version
from canary_mlflow.tracking.reading.histories import read_version, session_runs
from canary_mlflow.tracking.stores.session import get_run
from gates.facts.differences import HARDWARE, recorded
from gates.facts.exact import FACTS
from gates.model.records import Run, Version

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.registry.guard.store import GuardedStore


def order(client: MlflowClient, session_id: str, model: str, run_id: str) -> None:
    """Have the ledger say, before the run starts, that it is made of the champion's code. Does nothing without a
    ledger. Raises Refused where the registry does not let this person say so; UsageError for a run that has begun."""
    if is_guarded_server(client):
        ask(client, "POST", "sessions", {"model": model, "session": session_id, "word": Word.ORDERED, "run": run_id})
    elif (guard := guard_of(client)) is not None:
        record_order(client, guard, session_id, model, run_id)


def record_order(client: MlflowClient, guard: GuardedStore, session_id: str, model: str, run_id: str) -> Row:
    """Write the order into this guard's ledger: the run, and the champion whose code it repeats."""
    run, rows = get_run(client, run_id), trusted(guard, guard.session_rows(session_id))
    champion = guard.standing(model).version
    if champion is None:
        raise UsageError(f"model {model!r}: it has no champion whose code could be run; expected one")
    begun = run.data.metrics or run.info.status not in ("RUNNING", "SCHEDULED") or run_id in named_by(rows)
    if begun or moved_to(run) != session_id:
        raise UsageError(
            f"run {run_id}: found one that has begun, or is in another session; expected a new one of session "
            f"{session_id}; an order comes before its run"
        )
    return append(guard, session_id, model, Word.ORDERED, {"ordered": {run_id: str(champion)}})


def beside_in(client: MlflowClient, session_id: str | None, model: str) -> Mapping[str, str] | None:
    """Run id → the champion whose code it repeats, for the runs of a session, as the ledger says; None without a
    ledger. Nobody's runs if the ledger of a server is not for this reader."""
    if session_id is None:
        return {}
    if (guard := guard_of(client)) is not None:
        return beside_of(trusted(guard, guard.session_rows(session_id)))
    if not is_guarded_server(client):
        return None
    try:
        return beside_of(row for row in rows_there(client, model) if row.alias == session_id)
    except CanaryError:
        return {}


def rows_there(client: MlflowClient, model: str) -> Iterable[Row]:
    """A server's rows about a model, page by page. Raises Refused."""
    after, more = 0, True
    while more:
        answer = ask(client, "GET", f"ledger?model={quote(model, safe='')}&after={after}") or {"rows": []}
        rows = [Row(**plain) for plain in answer["rows"]]
        yield from rows
        after, more = rows[-1].seq if rows else 0, bool(answer.get("more"))


def version_with(client: MlflowClient, model: str, number: str) -> Version:
    """A model version with the runs that are its evidence, by the ledger's word if there is one. Raises NoSuchModel,
    NoSuchVersion, StoreError."""
    session_id = (find_version(client, model, number).tags or {}).get(tags.SESSION_ID)
    return read_version(client, model, number, beside=beside_in(client, session_id, model))


def session_evidence(client: MlflowClient, session_id: str, model: str) -> tuple[Run, ...]:
    """The candidate's runs in a session, by the ledger's word if there is one."""
    return session_runs(client, session_id, beside=beside_in(client, session_id, model))


def counted(baseline: Version | None) -> tuple[Version | None, tuple[str, ...]]:
    """The baseline with those of its fresh runs that are evidence: they finished, or an exception of their own ended
    them, and they were made as the champion's runs were. And a sentence about each that was made otherwise."""
    if baseline is None or not baseline.fresh:
        return baseline, ()
    told = [run for run in baseline.fresh if run.finished or run.raised is not None]
    others = {run.run_id: other for run in told if (other := made_otherwise(run, baseline.runs))}
    notes = tuple(
        f"not counted: run {run_id}, ordered as one of version {baseline.version}: its {key} is another"
        for run_id, key in others.items()
    )
    return replace(baseline, fresh=tuple(run for run in told if run.run_id not in others)), notes


def made_otherwise(run: Run, like: Sequence[Run]) -> str:
    """What a run recorded of how it was made that none of the others did; '' if nothing. A run that an exception ended
    may have recorded less."""
    known = recorded(like)
    for group, values in recorded([run]).items():
        if group in (HARDWARE, FACTS):  # the machine, and what follows from the rest
            continue
        for key in sorted(values if run.raised is not None else {**values, **known[group]}):
            if not set(values.get(key, ())) or not set(values[key]) <= set(known[group].get(key, ())):
                return f"{group} ({key})"
    return ""
