"""Judges sessions without a version: their runs broke off, or nothing is to be registered yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from canary_mlflow.errors import NoSuchModel, UsageError
from canary_mlflow.gates.judge import judge
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Version
from canary_mlflow.gates.model.verdict import Verdict
from canary_mlflow.registry.acts.accepting import accepted_facts
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.evidence import warnings_of
from canary_mlflow.registry.judging import records
from canary_mlflow.registry.judging.assessment import against_anchor, read_anchor
from canary_mlflow.registry.sessions.orders import beside_in, counted, session_evidence, version_with
from canary_mlflow.registry.versions import champion_number
from canary_mlflow.reports.decision import Decision, Question
from canary_mlflow.reports.links import run_page
from canary_mlflow.tracking.reading.histories import fresh_runs, read_runs, session_runs
from canary_mlflow.tracking.stores.places import without_password
from canary_mlflow.tracking.stores.session import get_run, minutes_of_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient


def gate_session(client: MlflowClient, model: str, session_id: str, policy: Policy, *remarks: str) -> Decision:
    """Judge a session that left no version (its runs crashed), and record the verdict on the session.

    No alias moves and nothing is bootstrapped, as there is no version. The model need not exist yet. `remarks`: more
    notes of the verdict.
    """
    beside = beside_in(client, session_id, model)
    runs = session_runs(client, session_id, beside=beside)
    if not runs:
        raise UsageError(
            f"session {session_id!r}: found no runs in it; expected at least one; give the id of a parent run"
        )
    before, baseline = champion_or_none(client, model), None
    if before is not None:
        fresh = fresh_runs(client, session_id, before, beside)
        baseline, _ = counted(replace(version_with(client, model, before), fresh=fresh))
    accepted = accepted_facts(registry_of(client), model)
    verdict = judge(policy, baseline, Version(model=model, version=None, runs=runs), accepted=accepted)
    verdict = replace(verdict, notes=(*verdict.notes, *remarks))
    return on_session(client, model, session_id, verdict, Question.SESSION)


def judge_runs(client: MlflowClient, model: str, run_ids: Sequence[str], policy: Policy) -> Decision | None:
    """Judge runs against the champion and record nothing; None if the model has no champion."""
    before = champion_or_none(client, model)
    if before is None:
        return None
    candidate = Version(model=model, version=None, runs=read_runs(client, run_ids))
    verdict = judge_against(client, policy, before, candidate)
    return Decision(
        verdict=verdict, model=model, question=Question.CHANGE, champion_before=before, champion_after=before
    )


def gate_change(client: MlflowClient, model: str, session_id: str, policy: Policy, *remarks: str) -> Decision:
    """Judge a session against the champion, and record that on the session; nothing is registered, no alias moves."""
    candidate = Version(model=model, version=None, runs=session_evidence(client, session_id, model))
    verdict = judge_against(client, policy, champion_or_none(client, model), candidate)
    verdict = replace(verdict, notes=(*verdict.notes, *remarks))
    return on_session(client, model, session_id, verdict, Question.CHANGE)


def judge_against(client: MlflowClient, policy: Policy, before: str | None, candidate: Version) -> Verdict:
    """The verdict on runs without a version, against the champion (version `before`) and the anchor."""
    baseline = None if before is None else version_with(client, candidate.model, before)
    verdict = judge(policy, baseline, candidate, accepted=accepted_facts(registry_of(client), candidate.model))
    pinned = read_anchor(client, candidate, verdict, before)
    return against_anchor(policy, pinned, candidate, verdict)


def on_session(client: MlflowClient, model: str, session_id: str, verdict: Verdict, question: Question) -> Decision:
    """Record a verdict without a version on the session that it is about."""
    before = champion_or_none(client, model)
    decision = Decision(
        verdict=verdict,
        model=model,
        question=question,
        champion_before=before,
        champion_after=before,
        session_id=session_id,
        store=without_password(client.tracking_uri),
        page=run_page(get_run(client, session_id).info.experiment_id, session_id),
        warnings=warnings_of(client, verdict),
        run_minutes=minutes_of_runs(client, session_id),
    )
    records.publish(client, decision)
    return decision


def champion_or_none(client: MlflowClient, model: str) -> str | None:
    """The champion's number; None also if the model is not registered yet."""
    try:
        return champion_number(client, model)
    except NoSuchModel:
        return None
