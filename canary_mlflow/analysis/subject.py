"""Resolves what a user types (run, session, version, champion) to its runs and the verdict on them: as it was recorded,
else as the gate would give it now."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow.exceptions import MlflowException

from canary_mlflow import tags
from canary_mlflow.analysis.ledger import Rows, decision_of, rows_of
from canary_mlflow.errors import NoSuchRun, UsageError
from canary_mlflow.files.documents import read_json
from canary_mlflow.files.source import MAX_VERDICT
from canary_mlflow.gates.judge import judge
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Run, Version
from canary_mlflow.policies import load_policy, policy_names
from canary_mlflow.registry.evidence import champion_runs
from canary_mlflow.registry.judging.assessment import Options, assess
from canary_mlflow.registry.policies.asked import policy_for
from canary_mlflow.registry.versions import champion_number, is_evidence_only, session_of
from canary_mlflow.reports.decision import Decision, Question, decision_from_dict
from canary_mlflow.reports.links import run_page, version_page
from canary_mlflow.resolve import NamedEvidence, find_named, find_run, run_side
from canary_mlflow.tracking.reading.histories import read_runs
from canary_mlflow.tracking.stores.places import artifact_folder, without_password
from canary_mlflow.tracking.stores.session import child_runs, get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun
    from mlflow.entities.model_registry import ModelVersion

FILE = "verdict.json"
SESSIONS = ("session", "revisions")  # roles of runs whose children are the evidence


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a report is about. `decision` None: `no_verdict` says why. `known`: runs that were already read.

    `rows`: what the ledger says about a version. `ledger_said`: why it says nothing.
    """

    label: str
    kind: str
    decision: Decision | None
    origin: str = ""
    no_verdict: str = ""
    candidate: Sequence[str] = ()
    baseline: Sequence[str] = ()
    model: str = ""
    version: str = ""
    known: Mapping[str, Run] = field(default_factory=dict)
    notes: Sequence[str] = ()
    rows: Rows = field(default_factory=list)
    ledger_said: str = "Not in the ledger: only versions of a registered model have rows there."


def find_subject(client: MlflowClient, text: str, policy: str | None = None) -> Subject:
    """`text`: a run id, a session id, MODEL/VERSION, MODEL@alias, or the last two after models:/.

    `policy`: rules to judge by where nothing has been judged yet. Raises NoSuchRun, NoSuchModel, NoSuchVersion,
    UsageError.
    """
    if policy:
        load_policy(policy)  # even if there is already a verdict: a wrong name must not pass unnoticed
    found = find_named(client, text)
    if found is not None:
        return of_version(client, found, policy)
    run = find_run(client, text)
    if run.data.tags.get(tags.ROLE) in SESSIONS:
        return of_session(client, run, policy)
    return of_runs(client, run, policy)


def of_version(client: MlflowClient, found: ModelVersion, policy: str | None) -> Subject:
    """A version: by the ledger's last verdict on it, else its session's verdict.json, else judged now, dry."""
    model, number, session = str(found.name), str(found.version), session_of(found)
    rows, ledger_said = rows_of(client, model, number)
    decision, origin = from_ledger(rows)
    if decision is None and session:
        decision, origin = from_file(client, session, (model, number))
    why = ""
    if decision is None:
        decision, origin, why = judged_now(client, model, number, policy)
    ids = evidence_of(client, session)
    if decision is not None:
        decision = replace(
            decision,
            store=without_password(client.tracking_uri),
            page=version_page(model, number),
            session_id=session,
            evidence_only=is_evidence_only(found),  # a row of the ledger does not say
        )
    return Subject(
        label=f"{model} version {number}",
        kind="version",
        decision=decision,
        origin=origin,
        no_verdict=why,
        candidate=decision.verdict.candidate_runs if decision else ids,
        baseline=decision.verdict.baseline_runs if decision else (),
        model=model,
        version=number,
        rows=rows,
        ledger_said=ledger_said,
        notes=[champion_now(client, model)],
    )


def champion_now(client: MlflowClient, model: str) -> str:
    """Who is champion now; a verdict only tells who was."""
    number = champion_number(client, model)
    return f"{model} has no champion now." if number is None else f"Champion of {model} now: version {number}."


def evidence_of(client: MlflowClient, session: str | None) -> list[str]:
    """The runs of a session, or the one run itself; empty if it is gone."""
    if not session:
        return []
    try:
        children = child_runs(client, session)
    except NoSuchRun:
        return []
    return [run.info.run_id for run in children if run.data.tags.get(tags.ROLE) == "run"] or [session]


def of_session(client: MlflowClient, session: MlflowRun, policy: str | None) -> Subject:
    """A session: as the version that it left, by the registry's word, else by its verdict.json, else judged against the
    champion."""
    session_id, model = session.info.run_id, session.data.tags.get(tags.MODEL_NAME, "")
    left = client.search_model_versions(tags.where(tags.SESSION_ID, session_id))
    if left:
        newest = max(left, key=lambda one: int(one.version))
        about = of_version(client, newest, policy)
        return replace(about, label=f"session {session_id}", kind="session")
    decision, origin = from_file(client, session_id, None)
    if decision is None:
        return of_runs(client, session, policy)
    page = run_page(session.info.experiment_id, session_id)
    return Subject(
        label=f"session {session_id}",
        kind="session",
        decision=replace(decision, store=without_password(client.tracking_uri), page=page),
        origin=origin,
        candidate=decision.verdict.candidate_runs,
        baseline=decision.verdict.baseline_runs,
        model=model,
    )


def of_runs(client: MlflowClient, head: MlflowRun, policy: str | None) -> Subject:
    """A run, or a session that was never judged, against its model's champion."""
    side = run_side(client, head.info.run_id)
    model = model_of(client, head)
    ids = [run.run_id for run in side.evidence.runs]
    champion = champion_runs(client, model) if model else []
    own = bool(set(ids) & set(champion))
    beside = () if own else read_runs(client, champion)
    decision, why = against_champion(client, side, beside, model, policy, own=own)
    return Subject(
        label=side.label,
        kind="session" if head.data.tags.get(tags.ROLE) == "session" else "run",
        decision=decision,
        origin="" if decision is None else "compared with the champion just now; nothing was written",
        no_verdict=why,
        candidate=ids,
        baseline=[run.run_id for run in beside],
        model=model,
        known={run.run_id: run for run in (*side.evidence.runs, *beside)},
    )


def model_of(client: MlflowClient, run: MlflowRun) -> str:
    """The registered model that a run or its session belongs to; empty for neither."""
    own: str = run.data.tags.get(tags.MODEL_NAME, "")
    parent = run.data.tags.get(tags.PARENT_RUN, "")
    if own or not parent:
        return own
    try:
        return str(get_run(client, parent).data.tags.get(tags.MODEL_NAME, ""))
    except NoSuchRun:
        return ""


# ---- the verdict -----------------------------------------------------------------------------------------------------


def from_ledger(rows: Rows) -> tuple[Decision | None, str]:
    """The last verdict among these rows."""
    for row in (one.row for one in reversed(rows)):
        try:
            facts: dict[str, Any] = row.facts
        except ValueError:
            continue
        if (decision := decision_of(row, facts)) is not None:
            return decision, f"row {row.seq} of the ledger, {str(facts.get('time', ''))[:16].replace('T', ' ')} UTC"
    return None, ""


def from_file(client: MlflowClient, session: str, about: tuple[str, str] | None) -> tuple[Decision | None, str]:
    """What the gate left as verdict.json with a session; nothing where it is not `about` this model and version."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            here = artifact_folder(client, session)
            path = here / FILE if here else Path(client.download_artifacts(session, FILE, folder))
            found = read_json(path, MAX_VERDICT, path.parent)
        decision = decision_from_dict(found)
    except (MlflowException, OSError, ValueError, TypeError, KeyError, AttributeError):
        return None, ""  # never judged, or by somebody else's file
    if about is not None and (decision.verdict.model, decision.version) != about:
        return None, ""
    return decision, "verdict.json of the session"


def judged_now(client: MlflowClient, model: str, version: str, policy: str | None) -> tuple[Decision | None, str, str]:
    """The verdict on a version that was never judged, as a dry run of the gate would give it."""
    try:
        rules = policy_for(client, model, version, policy)
    except UsageError as error:
        return None, "", f"Not judged: {error}." if policy else no_rules(f"{model}/{version}")
    try:
        judged = assess(client, model, version, rules, Options(dry_run=True))
    except UsageError as error:
        return None, "", f"Not judged: {error}."
    return judged.decision, "judged just now; nothing was written", ""


def against_champion(
    client: MlflowClient, side: NamedEvidence, champion: Sequence[Run], model: str, policy: str | None, *, own: bool
) -> tuple[Decision | None, str]:
    """What the gate would say about these runs; None with the reason if it could say nothing."""
    if own:
        return None, "Not judged: these runs are evidence of the champion itself."
    if not side.evidence.runs:
        return None, "Not judged: this session has no runs."
    rules = rules_of(policy, side.tier)
    if rules is None:
        return None, no_rules(side.label)
    baseline = Version(model=model, version=None, runs=tuple(champion)) if champion else None
    decision = Decision(
        verdict=judge(rules, baseline, side.evidence),
        model=model,
        question=Question.COMPARISON,
        store=without_password(client.tracking_uri),
        baseline_label=f"the champion of {model}" if champion else "no champion",
        candidate_label=side.label,
    )
    return decision, ""


def rules_of(named: str | None, tier: str) -> Policy | None:
    """The policy that was asked for, else the shipped one of the tier; a tag must not name a file to open."""
    if named:
        return load_policy(named)
    return load_policy(tier) if tier in policy_names() else None


def no_rules(subject: str) -> str:
    """The sentence on why there is no verdict if no policy is named."""
    return f"Not judged: the runs of {subject} carry no tier with a policy; --policy smoke chooses the rules."
