"""Where a version stands in its policy's plan of looks, and the runs that a look compares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from canary_mlflow.errors import UsageError
from canary_mlflow.registry.guard_client import guard_of
from canary_mlflow.registry.judging.looks import Progress, Taken, evidence_of, looks_in_ledger, looks_taken
from canary_mlflow.registry.judging.records import session_of
from canary_mlflow.registry.sessions.orders import beside_in, version_with
from canary_mlflow.tracking.reading.histories import fresh_runs, read_version
from gates.model.policy import Policy
from gates.model.records import Version
from gates.model.sides import baseline_side, candidate_side, planned

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.ledger.rows import Row


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


def progress(
    client: MlflowClient,
    found: ModelVersion,
    baseline: Version | None,
    candidate: Version,
    rows: Iterable[Row] | None = None,
) -> Progress:
    """How far the version is in its plan against this champion. `rows`: the ledger's rows about the model, if already
    read."""
    side = candidate_side(candidate.runs)
    fresh = [run for run in (baseline.fresh if baseline else ()) if run.finished]
    evidence = (*side.evidence, *baseline_side(baseline.runs if baseline else (), side).evidence, *fresh)
    now = Taken(runs=planned(side.evidence), evidence=evidence_of(run.run_id for run in evidence))
    if rows is None:
        guard = guard_of(client)
        rows = guard.ledger(candidate.model) if guard is not None else ()
    session, champion = session_of(found), baseline.version if baseline else None
    in_ledger = tuple(looks_in_ledger(rows, session, champion))
    return Progress(now=now, taken=looks_taken(client, session, champion, in_ledger), in_ledger=in_ledger)


def at_look(
    client: MlflowClient,
    policy: Policy,
    found: ModelVersion,
    baseline: Version | None,
    candidate: Version,
    rows: Iterable[Row],
) -> tuple[int, float, Taken]:
    """The look that the number of a version's runs has reached, counted from 1; the share of the error levels that it
    may spend; and what to record about it. `rows`: the ledger's about the model, none without a ledger.

    Raises UsageError if the plan was already spent on other evidence.
    """
    is_at = progress(client, found, baseline, candidate, rows)
    number = policy.looks.reached(is_at.now.runs, is_at.before)
    share = policy.looks.share(number, is_at.before)
    if share <= 0:
        raise UsageError(
            f"version {found.version} of {found.name!r}: its plan of looks is spent (taken at "
            f"{', '.join(map(str, is_at.before))} runs; its evidence has changed since: {is_at.now.runs} runs); "
            "expected none after the last; judge it once more, with the whole error level: canary gate without --top-up"
        )
    return number, share, is_at.now
