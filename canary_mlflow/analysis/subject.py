"""From what a user types (run, session, version, champion) to its runs and the verdict on them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow.analysis import ledger
from canary_mlflow.errors import NoSuchRun, UsageError
from canary_mlflow.pages.verdict import decision_of
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.evidence import Side, aliased, champion_runs, run_side, tier_of
from canary_mlflow.registry.gatekeeper import decide
from canary_mlflow.registry.records import session_of
from canary_mlflow.registry.versions import champion_number, find_version
from canary_mlflow.reports.advice import run_page, version_page
from canary_mlflow.reports.decision import Decision, Question
from canary_mlflow.tracking.histories import read_runs
from canary_mlflow.tracking.places import artifact_folder
from canary_mlflow.tracking.session import child_runs, get_run
from gates.judge import judge
from gates.records import Run, Version
from gates.verdict import verdict_from_dict

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun


NAME = "verdict.json"
SESSIONS = ("session", "revisions")  # roles of runs whose children are the evidence


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a report is about. `decision` None: `no_verdict` says why. `known`: runs that have been read already.

    `rows`: what the ledger says of a version; `ledger_said`: why it says nothing.
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
    rows: ledger.Rows = field(default_factory=list)
    ledger_said: str = "Not in the ledger: only versions of a registered model have rows there."


def find_subject(client: MlflowClient, text: str, policy: str | None = None) -> Subject:
    """`text`: a run id, a session id, MODEL/VERSION, MODEL@alias, or the last two after models:/.

    `policy`: rules to judge by where nothing has been judged yet. Raises NoSuchRun, NoSuchModel, NoSuchVersion,
    UsageError.
    """
    name = text.removeprefix("models:/")
    if "@" in name:
        model, _, alias = name.rpartition("@")
        return of_version(client, model, aliased(client, model, alias), policy)
    if "/" in name:
        model, _, version = name.rpartition("/")
        return of_version(client, model, version, policy)
    run = active_run(client, text)
    if run.data.tags.get("canary.role") in SESSIONS:
        return of_session(client, run, policy)
    return of_runs(client, run, policy)


def active_run(client: MlflowClient, run_id: str) -> MlflowRun:
    """The run. Raises NoSuchRun for one that is not there, or deleted."""
    run = get_run(client, run_id)
    if run.info.lifecycle_stage != "active":
        raise NoSuchRun(
            f"run {run_id!r}: deleted; expected an active run; mlflow runs restore --run-id {run_id} brings it back"
        )
    return run


def of_version(client: MlflowClient, model: str, version: str, policy: str | None) -> Subject:
    """A version: by the ledger's last verdict on it, else its session's verdict.json, else judged now, dry."""
    found = find_version(client, model, version)
    number, session = str(found.version), session_of(found)
    rows, ledger_said = ledger.rows_of(client, model, number)
    decision, origin = from_ledger(rows)
    if decision is None and session:
        decision, origin = from_file(client, session, (model, number))
    why = ""
    if decision is None:
        decision, origin, why = judged_now(client, model, number, policy)
    ids = evidence_of(client, session)
    if decision is not None:
        page = version_page(model, number)
        decision = replace(decision, store=str(client.tracking_uri), page=page, session_id=session)
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
    """Who is champion: a verdict tells of its own day."""
    number = champion_number(client, model)
    return f"{model} has no champion now." if number is None else f"Champion of {model} now: version {number}."


def evidence_of(client: MlflowClient, session: str | None) -> list[str]:
    """The runs of a session, or the one run itself; none where it is gone."""
    if not session:
        return []
    try:
        children = child_runs(client, session)
    except NoSuchRun:
        return []
    return [run.info.run_id for run in children if run.data.tags.get("canary.role") == "run"] or [session]


def from_ledger(rows: ledger.Rows) -> tuple[Decision | None, str]:
    """The last verdict among these rows."""
    for row, _before in reversed(rows):
        try:
            facts: dict[str, Any] = row.facts
        except ValueError:
            continue
        if (decision := decision_of(row, facts)) is not None:
            return decision, f"row {row.seq} of the ledger, {str(facts.get('time', ''))[:16].replace('T', ' ')} UTC"
    return None, ""


def from_file(client: MlflowClient, session: str, about: tuple[str, str] | None) -> tuple[Decision | None, str]:
    """What the gate left as verdict.json with a session; nothing where it is not `about` this model and version."""
    from mlflow.exceptions import MlflowException

    try:
        with tempfile.TemporaryDirectory() as folder:
            here = artifact_folder(client, session)
            path = here / NAME if here else Path(client.download_artifacts(session, NAME, folder))
            found = json.loads(path.read_text(encoding="utf-8"))
        decision = decision_from_dict(found)
    except (MlflowException, OSError, ValueError, TypeError, KeyError, AttributeError):
        return None, ""  # never judged, or by somebody else's file
    if about is not None and (decision.verdict.model, decision.version) != about:
        return None, ""
    return decision, "verdict.json of the session"


def decision_from_dict(found: Mapping[str, Any]) -> Decision:
    """The inverse of `decision_to_dict`, warnings left out: they are read from the runs."""
    return Decision(
        verdict=verdict_from_dict(found["verdict"]),
        model=str(found["model"]),
        version=found["version"],
        question=Question(found["question"]),
        promoted=bool(found["promoted"]),
        bootstrapped=bool(found["bootstrapped"]),
        champion_before=found["champion_before"],
        champion_after=found["champion_after"],
        session_id=found["session_id"],
        baseline_label=str(found["baseline"] or "") if found["question"] in ("comparison", "revisions") else "",
        candidate_label=str(found["candidate"] or "") if found["question"] in ("comparison", "revisions") else "",
        run_minutes=found.get("run_minutes"),
    )


def judged_now(client: MlflowClient, model: str, version: str, policy: str | None) -> tuple[Decision | None, str, str]:
    """A version that nobody has judged: as a dry run of the gate would."""
    tier = policy or tier_of(client, model, version)
    if not tier:
        return None, "", no_tier(f"{model}/{version}")
    try:
        judged = decide(client, model, version, load_policy(tier), dry_run=True)
    except UsageError as error:
        return None, "", f"Not judged: {error}."
    return judged.decision, "judged just now; nothing was written", ""


def no_tier(subject: str) -> str:
    """Why there is no verdict where no policy is named."""
    return f"Not judged: the runs of {subject} carry no tier; --policy smoke chooses the rules."


def of_session(client: MlflowClient, session: MlflowRun, policy: str | None) -> Subject:
    """A session: as the version it left, else by its verdict.json, else beside the champion."""
    session_id, tags = session.info.run_id, session.data.tags
    model, version = tags.get("canary.model_name", ""), tags.get("canary.version", "")
    if model and version:
        try:
            return replace(of_version(client, model, version, policy), label=f"session {session_id}", kind="session")
        except UsageError:  # the version was deleted since; the session speaks for itself
            pass
    decision, origin = from_file(client, session_id, None)
    if decision is None:
        return of_runs(client, session, policy)
    page = run_page(session.info.experiment_id, session_id)
    return Subject(
        label=f"session {session_id}",
        kind="session",
        decision=replace(decision, store=str(client.tracking_uri), page=page),
        origin=origin,
        candidate=decision.verdict.candidate_runs,
        baseline=decision.verdict.baseline_runs,
        model=model,
    )


def of_runs(client: MlflowClient, head: MlflowRun, policy: str | None) -> Subject:
    """A run, or a session that nobody judged, beside the champion of its model."""
    side = run_side(client, head.info.run_id)
    model = model_of(client, head)
    ids = [run.run_id for run in side.evidence.runs]
    champion = champion_runs(client, model) if model else []
    own = bool(set(ids) & set(champion))
    beside = () if own else read_runs(client, champion)
    decision, why = beside_champion(client, side, beside, model, policy, own=own)
    return Subject(
        label=side.label,
        kind="session" if head.data.tags.get("canary.role") == "session" else "run",
        decision=decision,
        origin="" if decision is None else "put beside the champion just now; nothing was written",
        no_verdict=why,
        candidate=ids,
        baseline=[run.run_id for run in beside],
        model=model,
        known={run.run_id: run for run in (*side.evidence.runs, *beside)},
    )


def model_of(client: MlflowClient, run: MlflowRun) -> str:
    """The registered model that a run or its session belongs to; empty for neither."""
    own: str = run.data.tags.get("canary.model_name", "")
    parent = run.data.tags.get("mlflow.parentRunId", "")
    if own or not parent:
        return own
    try:
        return str(get_run(client, parent).data.tags.get("canary.model_name", ""))
    except NoSuchRun:
        return ""


def beside_champion(
    client: MlflowClient, side: Side, champion: Sequence[Run], model: str, policy: str | None, *, own: bool
) -> tuple[Decision | None, str]:
    """What a gate would say of these runs; None with the reason where it could say nothing."""
    if own:
        return None, "Not judged: these runs are evidence of the champion itself."
    if not side.evidence.runs:
        return None, "Not judged: this session has no runs."
    if not (policy or side.tier):
        return None, no_tier(side.label)
    baseline = Version(model=model, version=None, runs=tuple(champion)) if champion else None
    decision = Decision(
        verdict=judge(load_policy(policy or side.tier), baseline, side.evidence),
        model=model,
        question=Question.COMPARISON,
        store=str(client.tracking_uri),
        baseline_label=f"the champion of {model}" if champion else "no champion",
        candidate_label=side.label,
    )
    return decision, ""
