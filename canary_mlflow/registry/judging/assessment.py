"""Assesses a version: what it is judged on, its past, the verdict, what should follow from it. Nothing is written.

Its past includes the anchor: a pinned baseline from which many small steps, each within one margin, cannot drift away
unseen.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from canary_mlflow.errors import UsageError
from canary_mlflow.evals.comparing import broken_in
from canary_mlflow.gates.evidence.clocks import judged_in_pairs
from canary_mlflow.gates.judge import judge
from canary_mlflow.gates.model.policy import FreshBaseline, Policy
from canary_mlflow.gates.model.records import Run, Version
from canary_mlflow.gates.model.verdict import CheckOutcome, Outcome, ReasonCode, Verdict, open_check
from canary_mlflow.gates.model.wording import listed, sentence_case
from canary_mlflow.gates.top_up import champion_runs
from canary_mlflow.registry.acts.accepting import accepted_in
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.evaluations import Known, known_of, with_evals
from canary_mlflow.registry.evidence import is_own_script, warnings_of
from canary_mlflow.registry.guard.binding import bind
from canary_mlflow.registry.guard.origin import behind_server, refuse_foreign_evidence, server_of
from canary_mlflow.registry.guard.seal import LOADING, RESUMING, require_seal, unchecked
from canary_mlflow.registry.judging.eligibility import could_begin, holds_of, only_looked_at
from canary_mlflow.registry.judging.looks import at_look
from canary_mlflow.registry.policies.in_force import changed_since, overruled, used
from canary_mlflow.registry.pruning.pruned import refuse_pruned
from canary_mlflow.registry.sessions.evidence import Read, refuse_changed_evidence
from canary_mlflow.registry.sessions.orders import counted, read_sides, version_with
from canary_mlflow.registry.sessions.tries import Tries, count
from canary_mlflow.registry.sessions.weights_check import checked_now
from canary_mlflow.registry.versions import (
    ANCHOR,
    EVIDENCE_ONLY,
    Weights,
    find_version,
    is_evidence_only,
    seal_of,
    session_of,
)
from canary_mlflow.reports.decision import SLOW_DRIFT, Decision, HeldBy, Hold, barred
from canary_mlflow.reports.links import version_page
from canary_mlflow.tracking.stores.places import without_password
from canary_mlflow.tracking.stores.session import minutes_of_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.gates.model.policy import Policy
    from canary_mlflow.gates.model.records import Version
    from canary_mlflow.gates.model.verdict import Verdict
    from canary_mlflow.ledger.chain import Row
    from canary_mlflow.registry.backends.registry import Registry
    from canary_mlflow.registry.guard.order import Binding, Standing
    from canary_mlflow.registry.judging.looks import Taken
    from canary_mlflow.registry.policies.in_force import Used


def anchor_number(client: MlflowClient, model: str) -> str | None:
    """The version that the anchor alias names; None if it names none."""
    number = client.get_registered_model(model).aliases.get(ANCHOR)
    return None if number is None else str(number)


def read_anchor(client: MlflowClient, candidate: Version, verdict: Verdict, champion: str | None) -> Version | None:
    """The anchor, which a PASS must also be compared with; None if the champion or the candidate is the anchor, if
    there is none, and for any other verdict."""
    number = anchor_number(client, candidate.model) if verdict.outcome is Outcome.PASS else None
    if number is None or number in (champion, candidate.version):
        return None
    return version_with(client, candidate.model, number)


def against_anchor(policy: Policy, pinned: Version | None, candidate: Version, verdict: Verdict) -> Verdict:
    """The verdict, with a PASS against the champion turned into a BLOCK if the candidate is worse than the anchor by
    more than `anchor_margins` times the margins."""
    if pinned is None:
        return verdict
    found = judge(policy, pinned, candidate, anchor=True)
    blocking = [check for check in found.checks if check.outcome is CheckOutcome.BLOCK]
    own = [check for check in blocking if check.metric not in foreign_speeds(policy, pinned.runs, candidate.runs)]
    if not own:
        wider = f"at {policy.anchor_margins:g} times the margins"
        said = f"against the anchor, version {pinned.version}, {wider}: {found.outcome}"
        if blocking:
            said += f" by {listed([check.metric for check in blocking])}, which is no harm: it was made on another host"
        return replace(verdict, notes=(*verdict.notes, said))
    return replace(
        verdict,
        outcome=found.outcome,
        reason_code=found.reason_code,
        reason=f"{SLOW_DRIFT} (version {pinned.version}): {sentence_case(own[0].reason)}.",
        checks=(*verdict.checks, *(replace(check, metric=f"{check.metric}, anchor") for check in own)),
    )


def foreign_speeds(policy: Policy, pinned: Sequence[Run], candidate: Sequence[Run]) -> frozenset[str]:
    """The rules of speed that cannot be judged against the anchor: it was made on other hosts, and the policy judges
    speed by fresh runs, which an anchor does not have."""
    before, now = ({run.environment.get("host") for run in side} for side in (pinned, candidate))
    if policy.looks.fresh_baseline is FreshBaseline.NEVER or before & now:
        return frozenset()
    return frozenset(rule.name for rule in policy.rules if judged_in_pairs(rule))


@dataclass(frozen=True, kw_only=True)
class TrackRecord:
    """`rows`: those about the model; none without a ledger. `unrecorded`: sessions of both sides whose runs at the end
    the ledger does not have yet. `aside`: a sentence about each run of the champion's code that does not count."""

    rows: Sequence[Row] = ()
    tries: Tries = field(default_factory=Tries)
    unrecorded: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()

    def noted(self, verdict: Verdict, version: str, policy: Policy) -> Verdict:
        """The verdict with notes on what a reader must know about the version's past, tries first."""
        tries = self.tries.notes(verdict.baseline_version, policy)
        past = block_notes(self.rows, int(version))
        return replace(verdict, attempt=self.tries.number, notes=(*tries, *self.aside, *verdict.notes, *past))


def block_notes(rows: Iterable[Row], version: int) -> list[str]:
    """What a reader should know about a version that was BLOCKed before: against another champion it may pass."""
    blocks = [row.facts.get("verdict") for row in rows if row.version == version and row.word == Outcome.BLOCK]
    beside = {str(verdict.get("baseline_version")) for verdict in blocks if isinstance(verdict, Mapping)}
    ordered = sorted(beside, key=lambda number: (len(number), number))
    return [f"version {version} was BLOCKed before, against version {listed(ordered)}"] if ordered else []


def track_record(
    registry: Registry,
    champion: Standing,
    found: ModelVersion,
    baseline: Version | None,
    candidate: Version,
) -> TrackRecord:
    """What the ledger has about a version against the champion. Raises UsageError if the runs of a side are not
    those that its session's rows name."""
    rows = registry.rows(candidate.model)
    number = None if baseline is None else baseline.version
    sides = [(found, Read(runs=candidate.runs, fresh=baseline.fresh if baseline else (), champion=number))]
    if baseline is not None and number is not None:
        sides.append((find_version(registry.client, candidate.model, number), Read(runs=baseline.runs)))
    ended = [refuse_changed_evidence(registry, side, read, rows) for side, read in sides]
    return TrackRecord(
        rows=rows,
        tries=count(registry, rows, session_of(found), candidate, champion),
        unrecorded=tuple(str(session_of(side)) for (side, _), over in zip(sides, ended, strict=True) if not over),
    )


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

    `binding`: None for one that nobody is to act on. `look`: which look of a plan it was. `used`: the policy, as the
    verdict's row records it. `unrecorded`: sessions of both sides whose runs at the end the ledger does not have yet.
    """

    decision: Decision
    binding: Binding | None = None
    against: Standing | None = None
    look: Taken | None = None
    used: Used | None = None
    unrecorded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A version and what it is judged on. `against`: the champion. `policy`: the one that applies, at this try.
    `overruled`: a note on the policy that was given and does not apply. `evals`: what is known of both sides'
    evaluations; None if the policy judges none."""

    found: ModelVersion
    registry: Registry
    against: Standing
    policy: Policy
    used: Used
    overruled: str
    baseline: Version | None
    candidate: Version
    past: TrackRecord
    evals: Known | None


def assess(client: MlflowClient, model: str, version: str, policy: Policy, options: Options) -> Judged:
    """The verdict on a version and what should follow from it. Raises whatever would make enacting it fail."""
    case = gather(client, model, version, policy, options)
    verdict, pinned, look = judge_case(client, case, options)
    decision = decision_on(client, case, verdict, options)
    judged, registry = Judged(decision=decision, look=look, used=case.used), case.registry
    if decision.dry_run and not decision.moves:
        return judged
    # A dry run must also report what the gate would refuse: files of another run, or unreadable ones.
    if registry.signs:
        refuse_foreign_evidence(client, case.found, case.candidate)
    follows = decision.grants if registry.signs else decision.moves  # a signed row lets the alias follow later too
    sealed = require_seal(registry, case.found) if follows else None
    others = (*case.baseline.runs, *case.baseline.fresh) if case.baseline else ()
    runs = (*case.candidate.runs, *others, *(pinned.runs if pinned else ()))
    bound = replace(bind(registry, case.found, runs, sealed), evals=case.evals.rows if case.evals else None)
    return replace(judged, binding=bound, against=case.against, unrecorded=case.past.unrecorded)


def gather(client: MlflowClient, model: str, version: str, policy: Policy, options: Options) -> Case:
    """Read what a version is judged on. Raises UsageError for the champion itself, and for runs that are not those of
    the ledger; NoSuchVersion."""
    found = find_version(client, model, version)
    registry = registry_of(client)
    against = registry.standing(model)
    before = against.number
    if before == str(found.version):
        raise UsageError(
            f"version {before} of {model!r}: it is the champion already; expected a candidate; to look at it: "
            f"canary compare {model}/OTHER {model}/{before}"
        )
    refuse_pruned(found, registry.pruned(found))
    governing = registry.governing(model) if registry.signs else None
    applied = policy if governing is None else governing.policy
    baseline, candidate = read_sides(client, model, before, found)
    applied = replace(applied, looks=applied.looks.ending_with(champion_runs(applied, baseline, candidate)))
    past = track_record(registry, against, found, baseline, candidate)
    baseline, others = counted(baseline)
    evals = None
    if applied.evals is not None:
        baseline, candidate, evals = with_evals(registry, baseline, candidate, sealed=applied.evals.sealed)
    return Case(
        found=found,
        registry=registry,
        against=against,
        policy=applied.at_try(past.tries.number),
        used=used(policy, governing, options.policy_file, server=options.server),
        overruled=overruled(policy, governing),
        baseline=baseline,
        candidate=candidate,
        past=replace(past, aside=others),
        evals=evals,
    )


def judge_case(client: MlflowClient, case: Case, options: Options) -> tuple[Verdict, Version | None, Taken | None]:
    """The verdict with its notes on the past; the anchor, if a PASS was also held against it; the look that this was,
    if it was one of a plan's."""
    policy, baseline, candidate = case.policy, case.baseline, case.candidate
    number, share, look = None, None, None
    if options.by_plan:
        number, share, look = at_look(client, policy, case.found, baseline, candidate, case.past.rows)
    accepted = accepted_in(case.registry, case.past.rows)
    by = partial(judge, baseline=baseline, candidate=candidate, look=number, share=share, accepted=accepted)
    verdict, tries = by(policy), case.past.tries
    if tries.number > 1 and by(tries.first(policy)).outcome is Outcome.PASS is not verdict.outcome:
        verdict = tries.leads(verdict)
    pinned = read_anchor(client, candidate, verdict, case.against.number)
    if pinned is not None and pinned.version is not None:
        its_version = find_version(client, candidate.model, pinned.version)
        refuse_changed_evidence(case.registry, its_version, Read(runs=pinned.runs), case.past.rows)
        if policy.evals is not None:
            pinned = replace(
                pinned, evals=known_of(case.registry, its_version, sealed=policy.evals.sealed).results.tables
            )
    verdict = case.past.noted(against_anchor(policy, pinned, candidate, verdict), str(case.found.version), policy)
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
    missing = champion_note(client, case.past.rows, str(found.name), case.against.number)
    of_evals = case.evals.notes if case.evals else ()
    verdict = replace(verdict, notes=(*verdict.notes, *of_evals, *notes, *([missing] if missing else [])))
    holds = holds_of(case.policy, found, case.baseline, case.candidate, verdict, options.promote, code)
    good = verdict.outcome is Outcome.PASS or could_begin(case.policy, verdict)
    why = unchecked(case.registry, found) if good else ""
    if why and not options.server:  # a server loads no models of others
        why = checked_now(case.registry, found)
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
        champion_before=case.against.number,
        champion_after=case.against.number,
        session_id=session_of(found),
        store=without_password(client.tracking_uri),
        page=version_page(str(found.name), str(found.version)),
        warnings=warnings_of(client, verdict),
        run_minutes=minutes_of_runs(client, session) if (session := session_of(found)) else None,
        broken=broken_in(verdict, case.baseline.evals, case.candidate.evals) if case.baseline else {},
    )


def code_notes(rows: Sequence[Row], found: ModelVersion) -> tuple[bool, list[str]]:
    """Whether loading the version can run code, as its seal says, and the notes on that."""
    seal = seal_of(rows, found)
    said = {} if seal is None else dict(seal.facts.get("code") or {})
    words = {LOADING: "loading its files can run code", RESUMING: "of its files, only a resumed training reads"}
    notes = [f"{word}: {listed(said[kind], 5)}" for kind, word in words.items() if said.get(kind)]
    return bool(said.get(LOADING)), notes


def champion_note(client: MlflowClient, rows: Sequence[Row], model: str, number: str | None) -> str:
    """That sealed files of the champion are missing, or cannot be looked for; '' if all are there. None is read."""
    if number is None or (seal := seal_of(rows, find_version(client, model, number))) is None:
        return ""
    place = behind_server(client.get_model_version_download_uri(model, number))
    sealed = set(seal.facts.get("files") or ()) - {posixpath.basename(place)}  # a place that is a file has no listing
    if seal.facts.get("weights") == Weights.NONE or not sealed:
        return ""
    subject, stands = f"the champion's files, version {number}", "the verdict compares runs and stands"
    try:
        repository = get_artifact_repository(place, server_of(client.tracking_uri) or None)
        folders = {posixpath.dirname(name) or None for name in sealed}
        missing = sorted(sealed - {one.path for folder in folders for one in repository.list_artifacts(folder)})
    except Exception as error:  # noqa: BLE001  # each kind of store has errors of its own
        return f"{subject}: cannot be listed ({type(error).__name__}); {stands}"
    many = "all" if len(missing) == len(sealed) else f"{len(missing)} of {len(sealed)}"
    see = f"see canary verify-weights models:/{model}/{number}"
    return f"{subject}: {many} missing ({listed(missing)}); {stands}; {see}" if missing else ""
