"""May this version become champion? Evidence → verdict → record → alias."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import BaselineMoved
from canary_mlflow.gates.judge import judge
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Version
from canary_mlflow.gates.model.verdict import verdict_to_dict
from canary_mlflow.ledger.chain import Kind, digest
from canary_mlflow.registry.actors import current_actor
from canary_mlflow.registry.acts.accepting import accepted_facts
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.order import Order, software
from canary_mlflow.registry.judging import records
from canary_mlflow.registry.judging.assessment import Judged, Options, assess
from canary_mlflow.registry.judging.looks import LOOK, note_look
from canary_mlflow.registry.policies.in_force import USED, overruled
from canary_mlflow.registry.sessions.evidence import refuse_changed_since
from canary_mlflow.registry.sessions.rows import Word, write
from canary_mlflow.registry.versions import ANCHOR, CHAMPION
from canary_mlflow.reports import naming
from canary_mlflow.reports.decision import Decision, Question, decision_from_dict, holds_to_list
from canary_mlflow.reports.links import version_page
from canary_mlflow.tracking.stores.places import without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.registry.backends.registry import Registry

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
    registry = registry_of(client)
    options = Options(
        dry_run=dry_run, by_plan=by_plan, promote=promote, policy_file=policy_file, server=bool(shown_store)
    )
    here = partial(judged_here, registry, model, version, policy, options, actor, shown_store, remarks)
    if dry_run:
        return here()
    body = {
        "model": model,
        "version": version,
        **({"by_plan": True} if by_plan else {}),
        **({} if promote is None else {"promote": promote}),
    }
    return registry.do("verdicts", body, here=here, there=partial(judged_there, registry, policy, remarks))


def judged_there(registry: Registry, policy: Policy, remarks: Remarks | None, answer: Mapping[str, Any]) -> Decision:
    """The decision as a server answers it, by the policy in force there, which may not be the one that was given."""
    client, decision = registry.client, decision_from_dict(answer["decision"])
    page = version_page(decision.model, str(decision.version))
    decision = replace(decision, store=without_password(client.tracking_uri), page=page)
    said = overruled(policy, registry.governing(decision.model), " on this server")
    decision = remarked(noted(decision, said), remarks)
    if not decision.dry_run:
        records.publish_files(client, decision)
    return decision


def judged_here(
    registry: Registry, model: str, version: str, policy: Policy, options: Options, actor: str | None,
    shown_store: str, remarks: Remarks | None,
) -> Decision:  # fmt: skip
    """The decision of this process, which records it."""
    client = registry.client
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
            decision = enact(registry, judged, actor)
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


def enact(registry: Registry, judged: Judged, actor: str | None = None) -> Decision:
    """Record the verdict, and move the alias if it says so. Raises BaselineMoved, with nothing written, if the champion
    is no longer the one that was judged against."""
    decision = judged.decision
    assert judged.binding is not None
    for session_id in judged.unrecorded:
        write(registry.client, session_id, decision.model, Word.ENDED)
        refuse_changed_since(session_id, registry.session_rows(session_id), judged.binding.runs)
    registry.record(order_of(judged, actor or current_actor()))
    if not decision.moves:
        return decision
    return replace(decision, promoted=True, champion_after=decision.version)


def order_of(judged: Judged, actor: str) -> Order:
    """The order that the gate gives after a verdict."""
    decision, binding = judged.decision, judged.binding
    assert decision.version is not None
    assert binding is not None
    verdict = decision.verdict
    plain = verdict_to_dict(verdict)
    return Order(
        kind=Kind.BOOTSTRAP if decision.bootstrapped else Kind.VERDICT,
        model=decision.model,
        version=decision.version,
        word=decision.word,
        binding=binding,
        actor=actor,
        reason=verdict.reason,
        grants=decision.grants,
        moves=decision.moves,
        alias=CHAMPION,
        pins=(ANCHOR,) if decision.bootstrapped and decision.moves else (),
        judged_against=judged.against,
        facts={
            "verdict": plain,
            "policy_digest": digest(plain["policy"]),
            **({USED: judged.used.to_dict()} if judged.used else {}),
            "session": decision.session_id,
            **({"changed": changed} if (changed := naming.name(verdict)) else {}),
            **({LOOK: str(judged.look)} if judged.look else {}),
            "software": dict(software()),
            **({"held_back": holds_to_list(decision.holds)} if decision.holds else {}),
        },
        tags=records.verdict_tags(decision),
    )


def compare(
    client: MlflowClient, policy: Policy, baseline: Version, candidate: Version, labels: Sequence[str]
) -> Decision:
    """Compare the evidence of two sides; writes nothing."""
    return Decision(
        verdict=judge(policy, baseline, candidate, accepted=accepted_facts(registry_of(client), candidate.model)),
        model=candidate.model,
        version=candidate.version,
        question=Question.COMPARISON,
        store=without_password(client.tracking_uri),
        baseline_label=labels[0],
        candidate_label=labels[1],
    )
