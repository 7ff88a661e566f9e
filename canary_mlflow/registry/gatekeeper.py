"""May this version become champion? Evidence → verdict → record → alias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from canary_mlflow.errors import BaselineMoved, NoSuchModel, UsageError
from canary_mlflow.registry import records
from canary_mlflow.registry.locks import registry_lock
from canary_mlflow.registry.versions import CHAMPION, champion_number, find_version
from canary_mlflow.reports.advice import run_page, version_page
from canary_mlflow.reports.decision import Decision, Question
from canary_mlflow.tracking.histories import read_version, session_runs
from canary_mlflow.tracking.session import get_run
from gates.judge import judge
from gates.policy import Bootstrap, Policy
from gates.records import Version
from gates.verdict import ReasonCode

if TYPE_CHECKING:
    from mlflow import MlflowClient

ATTEMPTS = 3  # judgements of one gate while other sessions move the champion


def gate(client: MlflowClient, model: str, version: str, policy: Policy, *, dry_run: bool = False) -> Decision:
    """Judge a version against the champion; a PASS (or a bootstrap) makes it champion, anything else leaves the alias.

    With `dry_run` nothing is written. When somebody moves the champion meanwhile, the version is judged again against
    the new one. Raises NoSuchModel, NoSuchVersion, UsageError when the version is the champion already, and
    BaselineMoved when the champion moved during every attempt.
    """
    for attempt in range(ATTEMPTS):
        decision = decide(client, model, version, policy, dry_run=dry_run)
        if dry_run:
            return decision
        try:
            decision = enact(client, decision)
        except BaselineMoved:
            if attempt == ATTEMPTS - 1:
                raise
            continue
        break
    records.publish(client, decision)
    return decision


def decide(client: MlflowClient, model: str, version: str, policy: Policy, *, dry_run: bool) -> Decision:
    """The verdict and what should follow from it; writes nothing."""
    found = find_version(client, model, version)
    before = champion_number(client, model)
    if before == str(found.version):
        raise UsageError(
            f"version {before} of {model!r}: it is the champion already; expected a candidate; to look at it: "
            f"canary compare {model}/OTHER {model}/{before}"
        )
    baseline = None if before is None else read_version(client, model, before)
    verdict = judge(policy, baseline, read_version(client, model, str(found.version)))
    return Decision(
        verdict=verdict,
        model=model,
        version=str(found.version),
        bootstrapped=verdict.reason_code is ReasonCode.NO_BASELINE and policy.bootstrap is Bootstrap.AUTO,
        dry_run=dry_run,
        champion_before=before,
        champion_after=before,
        session_id=records.session_of(found),
        store=str(client.tracking_uri),
        page=version_page(model, str(found.version)),
    )


def enact(client: MlflowClient, decision: Decision) -> Decision:
    """Write the verdict on the version and move the alias if it says so, as one step of this host's promoters.

    MLflow has no compare-and-set: the alias is read again just before it is moved, under the registry's lock file when
    the store is embedded. Raises BaselineMoved, with nothing written, when the champion is no longer the one judged.
    """
    assert decision.version is not None
    with registry_lock(client):
        now = champion_number(client, decision.model)
        if now != decision.champion_before:
            raise BaselineMoved(
                f"{decision.model!r}: the champion became {spoken(now)} while version {decision.version} was judged "
                f"against {spoken(decision.champion_before)}; expected it to stay; gate it again"
            )
        records.tag_version(client, decision)
        if decision.exit_code != 0:
            return decision
        client.set_registered_model_alias(decision.model, CHAMPION, decision.version)
    return replace(decision, promoted=True, champion_after=decision.version)


def spoken(number: str | None) -> str:
    """`version 3`, or `none`."""
    return "none" if number is None else f"version {number}"


def gate_session(client: MlflowClient, model: str, session_id: str, policy: Policy) -> Decision:
    """Judge a session that left no version (its runs crashed) by the hard gates alone, and write that on the session.

    No alias moves and nothing is bootstrapped: there is no version. The model need not exist yet.
    """
    runs = tuple(session_runs(client, session_id))
    if not runs:
        raise UsageError(
            f"session {session_id!r}: found no runs in it; expected at least one; give the id of a parent run"
        )
    try:
        before = champion_number(client, model)
    except NoSuchModel:
        before = None
    decision = Decision(
        verdict=judge(policy, None, Version(model=model, version=None, runs=runs)),
        model=model,
        question=Question.SESSION,
        champion_before=before,
        champion_after=before,
        session_id=session_id,
        store=str(client.tracking_uri),
        page=run_page(get_run(client, session_id).info.experiment_id, session_id),
    )
    records.publish(client, decision)
    return decision


def compare(
    client: MlflowClient, policy: Policy, baseline: Version, candidate: Version, labels: Sequence[str]
) -> Decision:
    """The evidence of two sides beside each other; writes nothing."""
    return Decision(
        verdict=judge(policy, baseline, candidate),
        model=candidate.model,
        version=candidate.version,
        question=Question.COMPARISON,
        store=str(client.tracking_uri),
        baseline_label=labels[0],
        candidate_label=labels[1],
    )
