"""Runs of the champion's code beside a candidate's: the side that signs orders them before they start.

What a run says of itself never makes it the champion's: whoever trains the candidate would choose what it is compared
with. Only a run that a row named while it was still empty counts, and only if it recorded what the champion's runs did
about code, packages, data and configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from canary_mlflow import tags
from canary_mlflow.errors import UsageError
from canary_mlflow.gates.facts.check import HARDWARE, recorded
from canary_mlflow.gates.facts.exact import FACTS
from canary_mlflow.gates.model.records import Run, Version
from canary_mlflow.ledger.chain import Row
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.sessions.rows import Word, append, beside_of, moved_to, named_by
from canary_mlflow.registry.versions import find_version, session_of
from canary_mlflow.tracking.reading.histories import fresh_runs, read_version, session_runs
from canary_mlflow.tracking.stores.session import get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.registry.backends.registry import Registry


def order(client: MlflowClient, session_id: str, model: str, run_id: str) -> None:
    """Have the ledger say, before the run starts, that it is made of the champion's code. Does nothing without a
    ledger. Raises Refused where the registry does not let this person say so; UsageError for a run that has begun."""
    registry = registry_of(client)
    body = {"model": model, "session": session_id, "word": Word.ORDERED, "run": run_id}
    here = partial(record_order, registry, session_id, model, run_id)
    registry.do("sessions", body, here=here, there=lambda _: None)


def record_order(registry: Registry, session_id: str, model: str, run_id: str) -> Row | None:
    """Write the order into this registry's ledger: the run, and the champion whose code it repeats."""
    if not registry.signs:
        return None
    run, rows = get_run(registry.client, run_id), registry.life(session_id, model) or ()
    champion = registry.standing(model).version
    if champion is None:
        raise UsageError(f"model {model!r}: it has no champion whose code could be run; expected one")
    begun = run.data.metrics or run.info.status not in ("RUNNING", "SCHEDULED") or run_id in named_by(rows)
    if begun or moved_to(run) != session_id:
        raise UsageError(
            f"run {run_id}: found one that has begun, or is in another session; expected a new one of session "
            f"{session_id}; an order comes before its run"
        )
    return append(registry, session_id, model, Word.ORDERED, {"ordered": {run_id: str(champion)}})


def beside_in(client: MlflowClient, session_id: str | None, model: str) -> Mapping[str, str] | None:
    """Run id → the champion whose code it repeats, for the runs of a session, as the ledger says; None without a
    ledger. Nobody's runs if the ledger of a server is not for this reader."""
    if session_id is None:
        return {}
    rows = registry_of(client).life(session_id, model)
    return None if rows is None else beside_of(rows)


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


def read_sides(
    client: MlflowClient, model: str, champion: str | None, found: ModelVersion
) -> tuple[Version | None, Version]:
    """The champion, with its fresh runs made beside the candidate's, and the candidate."""
    session = session_of(found)
    beside = beside_in(client, session, model)
    candidate = read_version(client, model, str(found.version), beside=beside)
    if champion is None:
        return None, candidate
    fresh = fresh_runs(client, session, champion, beside) if session else ()
    return replace(version_with(client, model, champion), fresh=fresh), candidate
