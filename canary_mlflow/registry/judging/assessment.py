"""Assesses a version: what it is judged on, the verdict, and what should follow from it. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from canary_mlflow.errors import UsageError
from canary_mlflow.registry.acts.accepting import accepted_in
from canary_mlflow.registry.evidence import is_own_script, warnings_of
from canary_mlflow.registry.guard.binding import bind
from canary_mlflow.registry.guard.origin import refuse_foreign_evidence
from canary_mlflow.registry.guard.seal import EVIDENCE_ONLY, require_seal, unchecked
from canary_mlflow.registry.guard_client import guard_of
from canary_mlflow.registry.judging.anchor import against_anchor, read_anchor
from canary_mlflow.registry.judging.eligibility import could_begin, holds_of, only_looked_at
from canary_mlflow.registry.judging.file_notes import champion_note, code_notes
from canary_mlflow.registry.judging.records import session_of
from canary_mlflow.registry.judging.sides import at_look, read_sides
from canary_mlflow.registry.judging.track_record import track_record
from canary_mlflow.registry.policies.in_force import set_for
from canary_mlflow.registry.policies.used import changed_since, overruled, used
from canary_mlflow.registry.pruning.pruned import refuse_pruned
from canary_mlflow.registry.sessions.evidence import Read, refuse_changed_evidence
from canary_mlflow.registry.sessions.orders import counted
from canary_mlflow.registry.sessions.weights_check import checked_now
from canary_mlflow.registry.versions import CHAMPION, champion_number, find_version, is_evidence_only
from canary_mlflow.reports.decision import Decision, HeldBy, Hold, barred
from canary_mlflow.reports.links import version_page
from canary_mlflow.tracking.stores.places import without_password
from canary_mlflow.tracking.stores.session import minutes_of_runs
from gates.judge import judge
from gates.model.verdict import Outcome, ReasonCode, open_check
from gates.model.wording import sentence_case
from gates.top_up import champion_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.registry.guard.binding import Binding
    from canary_mlflow.registry.guard.promotion import Standing
    from canary_mlflow.registry.guard.store import GuardedStore
    from canary_mlflow.registry.judging.looks import Taken
    from canary_mlflow.registry.judging.track_record import TrackRecord
    from canary_mlflow.registry.policies.used import Used
    from gates.model.policy import Policy
    from gates.model.records import Version
    from gates.model.verdict import Verdict

NOT_COMPARED = "its weights were not compared with what its session trained"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a version is to be judged (gatekeeper.gate describes the first four). `server`: a server judges it."""

    dry_run: bool = False
    by_plan: bool = False
    promote: bool | None = None
    policy_file: str = ""
    server: bool = False


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


@dataclass(frozen=True, kw_only=True)
class Case:
    """A version and what it is judged on. `against`: the champion's standing in the ledger; `before`: its number.
    `policy`: the one that applies, at this try. `overruled`: a note on the policy that was given and does not apply.
    """

    found: ModelVersion
    guard: GuardedStore | None
    against: Standing | None
    before: str | None
    policy: Policy
    used: Used
    overruled: str
    baseline: Version | None
    candidate: Version
    past: TrackRecord


def assess(client: MlflowClient, model: str, version: str, policy: Policy, options: Options) -> Judged:
    """The verdict on a version and what should follow from it. Raises whatever would make enacting it fail."""
    case = gather(client, model, version, policy, options)
    verdict, pinned, look = judge_case(client, case, options)
    decision = decision_on(client, case, verdict, options)
    judged = Judged(decision=decision, look=look, used=case.used)
    if case.guard is None or (decision.dry_run and not decision.moves):
        if decision.moves:
            require_seal(client, case.guard, case.found)
        return judged
    # A dry run must also report what the gate would refuse: files of another run, or unreadable ones.
    refuse_foreign_evidence(client, case.found, case.candidate)
    sealed = require_seal(client, case.guard, case.found) if decision.grants else None
    others = (*case.baseline.runs, *case.baseline.fresh) if case.baseline else ()
    runs = (*case.candidate.runs, *others, *(pinned.runs if pinned else ()))
    bound = bind(client, case.found, runs, sealed)
    return replace(judged, binding=bound, against=case.against, unrecorded=case.past.unrecorded)


def gather(client: MlflowClient, model: str, version: str, policy: Policy, options: Options) -> Case:
    """Read what a version is judged on. Raises UsageError for the champion itself, and for runs that are not those of
    the ledger; NoSuchVersion."""
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
    applied = policy if governing is None else governing.policy
    baseline, candidate = read_sides(client, model, before, found)
    applied = replace(applied, looks=applied.looks.ending_with(champion_runs(applied, baseline, candidate)))
    past = track_record(client, guard, against, found, baseline, candidate)
    baseline, others = counted(baseline)
    return Case(
        found=found,
        guard=guard,
        against=against,
        before=before,
        policy=applied.at_try(past.tries.number),
        used=used(policy, governing, options.policy_file, server=options.server),
        overruled=overruled(policy, governing),
        baseline=baseline,
        candidate=candidate,
        past=replace(past, aside=others),
    )


def judge_case(client: MlflowClient, case: Case, options: Options) -> tuple[Verdict, Version | None, Taken | None]:
    """The verdict with its notes on the past; the anchor, if a PASS was also held against it; the look that this was,
    if it was one of a plan's."""
    policy, baseline, candidate = case.policy, case.baseline, case.candidate
    number, share, look = None, None, None
    if options.by_plan:
        number, share, look = at_look(client, policy, case.found, baseline, candidate, case.past.rows)
    accepted = () if case.guard is None else accepted_in(case.guard, case.past.rows)
    by = partial(judge, baseline=baseline, candidate=candidate, look=number, share=share, accepted=accepted)
    verdict, tries = by(policy), case.past.tries
    if tries.number > 1 and by(tries.first(policy)).outcome is Outcome.PASS is not verdict.outcome:
        verdict = tries.leads(verdict)
    pinned = read_anchor(client, candidate, verdict, case.before)
    if case.guard is not None and pinned is not None and pinned.version is not None:
        its_version = find_version(client, candidate.model, pinned.version)
        refuse_changed_evidence(client, case.guard, its_version, Read(runs=pinned.runs), case.past.rows)
    verdict = case.past.noted(against_anchor(policy, pinned, candidate, verdict), str(case.found.version), policy)
    if case.guard is not None:
        changed = changed_since(case.past.rows, verdict, case.used, look=look is not None)
        verdict = replace(verdict, notes=(*(note for note in (changed, case.overruled) if note), *verdict.notes))
    return verdict, pinned, look


def left_open(verdict: Verdict, reason: str) -> Verdict:
    """A verdict on runs whose weights may be others'; one that is open anyway stays as it is."""
    if verdict.outcome is not Outcome.PASS:
        return verdict
    check = open_check("weights", reason, ReasonCode.MISSING_DATA)
    return replace(
        verdict, outcome=Outcome.INCONCLUSIVE, reason_code=ReasonCode.MISSING_DATA, reason=f"{reason}.",
        checks=(*verdict.checks, check),
    )  # fmt: skip


def decision_on(client: MlflowClient, case: Case, verdict: Verdict, options: Options) -> Decision:
    """What should follow from the verdict, and everything that reports show of it."""
    found = case.found
    code, notes = code_notes(case.past.rows, found)
    missing = champion_note(client, case.past.rows, str(found.name), case.before)
    verdict = replace(verdict, notes=(*verdict.notes, *notes, *([missing] if missing else [])))
    holds = holds_of(case.policy, found, case.baseline, case.candidate, verdict, options.promote, code)
    good = verdict.outcome is Outcome.PASS or could_begin(case.policy, verdict)
    why = unchecked(client, case.guard, found) if good else ""
    if why and not options.server:  # a server loads no models of others
        why = checked_now(client, case.guard, found)
    if why:
        holds = (*holds, Hold(by=HeldBy.UNCHECKED, reason=f"{NOT_COMPARED}: {why}"))
        verdict = left_open(verdict, f"{sentence_case(NOT_COMPARED)}: {why}")
    if evidence_only := is_evidence_only(found):
        verdict = replace(verdict, notes=(*verdict.notes, EVIDENCE_ONLY))
    return Decision(
        verdict=verdict,
        model=str(found.name),
        version=str(found.version),
        bootstrapped=could_begin(case.policy, verdict) and not barred(holds),
        dry_run=options.dry_run or (not options.by_plan and only_looked_at(found, holds)),
        evidence_only=evidence_only,
        own_script=is_own_script(client, found),
        holds=holds,
        champion_before=case.before,
        champion_after=case.before,
        session_id=session_of(found),
        store=without_password(client.tracking_uri),
        page=version_page(str(found.name), str(found.version)),
        warnings=warnings_of(client, verdict),
        run_minutes=minutes_of_runs(client, session) if (session := session_of(found)) else None,
    )
