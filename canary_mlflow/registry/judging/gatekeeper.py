"""May this version become champion? Evidence → verdict → record → alias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from canary_mlflow.errors import BaselineMoved
from canary_mlflow.registry.actors import current_actor
from canary_mlflow.registry.acts.accepting import accepted_facts
from canary_mlflow.registry.guard_client import guard_of, record, verdict_order
from canary_mlflow.registry.judging import records
from canary_mlflow.registry.judging.assessment import Judged, Options, assess
from canary_mlflow.registry.judging.looks import note_look
from canary_mlflow.registry.judging.unguarded import enact_unguarded, promoted
from canary_mlflow.registry.policies.used import overruled
from canary_mlflow.registry.remote import in_force_there, is_guarded_server, remote_gate
from canary_mlflow.registry.sessions.evidence import refuse_changed_since
from canary_mlflow.registry.sessions.rows import Word, write
from canary_mlflow.reports.decision import Decision, Question
from canary_mlflow.tracking.stores.places import without_password
from gates.judge import judge
from gates.model.policy import Policy
from gates.model.records import Version

if TYPE_CHECKING:
    from mlflow import MlflowClient


Remarks = Callable[[Decision], Sequence[str]]
ATTEMPTS = 3  # judgements of one gate while other sessions move the champion


def gate(
    client: MlflowClient,
    model: str,
    version: str,
    policy: Policy,
    *,
    dry_run: bool = False,
    actor: str | None = None,
    promote: bool | None = None,
    shown_store: str = "",
    by_plan: bool = False,
    remarks: Remarks | None = None,
    policy_file: str = "",
) -> Decision:
    """Judge a version against the champion; a PASS (or a bootstrap) makes it champion unless something holds it back
    (`holds_of`); anything else leaves the alias.

    `dry_run`: write nothing. `promote`: True also over a newer champion; False not at all: the verdict is recorded, and
    the alias may follow it later; None only over an older champion, and a version that was judged before and is older
    than the champion is only looked at: nothing is written. `shown_store`: the store's name in reports, if its URI is
    private. `by_plan`: judge as the look of the policy's plan that the number of runs has reached, spending only that
    look's share. `remarks`: gives further notes once the decision is known. `policy_file`: where the policy is, if it
    is the caller's own. If somebody moves the champion meanwhile, the version is judged again against the new one.

    A policy that the ledger sets for the model, and on a server the one in force there, overrules `policy`; differences
    are noted. Raises BaselineMoved if the champion, or the policy that is set, changed during every attempt.
    """
    if not dry_run and is_guarded_server(client):
        said = overruled(policy, in_force_there(client, model), " on this server")
        decision = remote_gate(client, model, version, by_plan=by_plan, promote=promote)
        decision = remarked(noted(decision, said), remarks)
        if not decision.dry_run:
            records.publish_files(client, decision)
        return decision
    options = Options(
        dry_run=dry_run, by_plan=by_plan, promote=promote, policy_file=policy_file, server=bool(shown_store)
    )
    for attempt in range(ATTEMPTS):
        judged = assess(client, model, version, policy, options)
        judged = replace(judged, decision=remarked(judged.decision, remarks))
        if shown_store:
            judged = replace(judged, decision=replace(judged.decision, store=shown_store))
        if judged.decision.dry_run:
            return judged.decision
        if judged.look is not None and (session := judged.decision.session_id):
            note_look(client, session, judged.decision.champion_before, judged.look)
        try:
            decision = enact(client, judged, actor)
        except BaselineMoved:
            if attempt == ATTEMPTS - 1:
                raise
            continue
        break
    records.publish_texts(client, decision)
    if not shown_store:  # on a server, its clients write the artifacts
        records.publish_files(client, decision)
    return decision


def remarked(decision: Decision, remarks: Remarks | None) -> Decision:
    """The decision with the caller's remarks as notes on its verdict."""
    return decision if remarks is None else noted(decision, *remarks(decision))


def noted(decision: Decision, *said: str) -> Decision:
    """The decision with more notes on its verdict; empty notes are dropped."""
    verdict = decision.verdict
    return replace(decision, verdict=replace(verdict, notes=(*verdict.notes, *(note for note in said if note))))


def enact(client: MlflowClient, judged: Judged, actor: str | None = None) -> Decision:
    """Record the verdict, and move the alias if it says so. Raises BaselineMoved, with nothing written, if the champion
    is no longer the one that was judged against."""
    guard = guard_of(client)
    decision = judged.decision
    if guard is None:
        return enact_unguarded(client, decision)
    assert judged.binding is not None
    for session_id in judged.unrecorded:
        write(client, session_id, decision.model, Word.ENDED)
        refuse_changed_since(session_id, guard.session_rows(session_id), judged.binding.runs)
    by = actor or current_actor()
    record(guard, verdict_order(decision, judged.binding, judged.against, by, judged.used, judged.look))
    return promoted(decision)


def compare(
    client: MlflowClient, policy: Policy, baseline: Version, candidate: Version, labels: Sequence[str]
) -> Decision:
    """Compare the evidence of two sides; writes nothing."""
    return Decision(
        verdict=judge(policy, baseline, candidate, accepted=accepted_facts(guard_of(client), candidate.model)),
        model=candidate.model,
        version=candidate.version,
        question=Question.COMPARISON,
        store=without_password(client.tracking_uri),
        baseline_label=labels[0],
        candidate_label=labels[1],
    )
