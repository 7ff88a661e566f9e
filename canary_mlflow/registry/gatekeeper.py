"""May this version become champion? Evidence → verdict → record → alias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from canary_mlflow.errors import BaselineMoved, UsageError
from canary_mlflow.registry import records
from canary_mlflow.registry.accepting import accepted_facts, accepted_in
from canary_mlflow.registry.actors import current_actor
from canary_mlflow.registry.anchor import against_anchor, read_anchor
from canary_mlflow.registry.binding import bind
from canary_mlflow.registry.eligibility import could_begin, holds_of, only_looked_at
from canary_mlflow.registry.evidence import is_own_script, warnings_of
from canary_mlflow.registry.guard_client import guard_of, record, verdict_order
from canary_mlflow.registry.looks import note_look
from canary_mlflow.registry.origin import refuse_foreign_evidence
from canary_mlflow.registry.policy_in_force import set_for
from canary_mlflow.registry.policy_used import changed_since, overruled, used
from canary_mlflow.registry.pruned import refuse_pruned
from canary_mlflow.registry.records import session_of
from canary_mlflow.registry.remote import in_force_there, is_guarded_server, remote_gate
from canary_mlflow.registry.seal import EVIDENCE_ONLY, require_seal
from canary_mlflow.registry.session_evidence import Read, refuse_changed_evidence, refuse_changed_since
from canary_mlflow.registry.session_rows import Word, write
from canary_mlflow.registry.sides import at_look, read_sides
from canary_mlflow.registry.track_record import track_record
from canary_mlflow.registry.unguarded import enact_unguarded, promoted
from canary_mlflow.registry.versions import CHAMPION, champion_number, find_version, is_evidence_only
from canary_mlflow.reports.advice import version_page
from canary_mlflow.reports.decision import Decision, Question, barred
from canary_mlflow.tracking.places import without_password
from canary_mlflow.tracking.session import minutes_of_runs
from gates.judge import judge
from gates.model.policy import Policy
from gates.model.records import Version
from gates.top_up import champion_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.registry.binding import Binding
    from canary_mlflow.registry.looks import Taken
    from canary_mlflow.registry.policy_used import Used
    from canary_mlflow.registry.promotion import Standing

Remarks = Callable[[Decision], Sequence[str]]
ATTEMPTS = 3  # judgements of one gate while other sessions move the champion


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A decision that was not yet acted on, with what it was about and who was champion when it was made.

    Without a guard (`binding` None), only the champion's number can be compared. `look`: which look of a plan it was.
    `used`: the policy, as the verdict's row records it. `unrecorded`: sessions of both sides whose runs at
    the end the ledger does not have yet.
    """

    decision: Decision
    binding: Binding | None = None
    against: Standing | None = None
    look: Taken | None = None
    used: Used | None = None
    unrecorded: tuple[str, ...] = ()


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
    for attempt in range(ATTEMPTS):
        judged = decide(
            client, model, version, policy, dry_run=dry_run, by_plan=by_plan, promote=promote, policy_file=policy_file,
            server=bool(shown_store),
        )  # fmt: skip
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


def decide(
    client: MlflowClient,
    model: str,
    version: str,
    policy: Policy,
    *,
    dry_run: bool,
    by_plan: bool = False,
    promote: bool | None = None,
    policy_file: str = "",
    server: bool = False,
) -> Judged:
    """The verdict and what should follow from it; writes nothing. Raises whatever would make enacting it fail."""
    found = find_version(client, model, version)
    guard = guard_of(client)
    against = None if guard is None else guard.standing(model, CHAMPION)
    before = champion_number(client, model)
    if before == str(found.version):
        raise UsageError(
            f"version {before} of {model!r}: it is the champion already; expected a candidate; to look at it: "
            f"canary compare {model}/OTHER {model}/{before}"
        )
    refuse_pruned(guard, found)
    governing = None if guard is None else set_for(guard, model)
    by = used(policy, governing, policy_file, server=server)
    aside = overruled(policy, governing)
    policy = policy if governing is None else governing.policy
    baseline, candidate = read_sides(client, model, before, found)
    policy = replace(policy, looks=policy.looks.ending_with(champion_runs(policy, baseline, candidate)))
    past = track_record(client, guard, against, found, baseline, candidate)
    policy = policy.at_try(past.tries.number)
    number, share, look = None, None, None
    if by_plan:
        number, share, look = at_look(client, policy, found, baseline, candidate, past.rows)
    accepted = () if guard is None else accepted_in(guard, past.rows)
    verdict = judge(policy, baseline, candidate, look=number, share=share, accepted=accepted)
    pinned = read_anchor(client, candidate, verdict, before)
    if guard is not None and pinned is not None and pinned.version is not None:
        its_version = find_version(client, model, pinned.version)
        refuse_changed_evidence(client, guard, its_version, Read(runs=pinned.runs), past.rows)
    verdict = past.noted(against_anchor(policy, pinned, candidate, verdict), str(found.version), policy)
    if guard is not None:
        changed = changed_since(past.rows, verdict, by, look=look is not None)
        verdict = replace(verdict, notes=(*(note for note in (changed, aside) if note), *verdict.notes))
    holds = holds_of(policy, found, baseline, candidate, verdict, promote)
    if evidence_only := is_evidence_only(found):
        verdict = replace(verdict, notes=(*verdict.notes, EVIDENCE_ONLY))
    decision = Decision(
        verdict=verdict,
        model=model,
        version=str(found.version),
        bootstrapped=could_begin(policy, verdict) and not barred(holds),
        dry_run=dry_run or (not by_plan and only_looked_at(found, holds)),
        evidence_only=evidence_only,
        own_script=is_own_script(client, found),
        holds=holds,
        champion_before=before,
        champion_after=before,
        session_id=session_of(found),
        store=without_password(client.tracking_uri),
        page=version_page(model, str(found.version)),
        warnings=warnings_of(client, verdict),
        run_minutes=minutes_of_runs(client, session) if (session := session_of(found)) else None,
    )
    if guard is None or (decision.dry_run and not decision.moves):
        if decision.moves:
            require_seal(client, guard, found)
        return Judged(decision=decision, look=look, used=by)
    # A dry run must also report what the gate would refuse: files of another run, or unreadable ones.
    refuse_foreign_evidence(client, found, candidate)
    sealed = require_seal(client, guard, found) if decision.grants else None
    others = (*baseline.runs, *baseline.fresh) if baseline else ()
    runs = (*candidate.runs, *others, *(pinned.runs if pinned else ()))
    bound = bind(client, found, runs, sealed)
    return Judged(decision=decision, binding=bound, against=against, look=look, used=by, unrecorded=past.unrecorded)


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
