"""The verdict on a subject: as it was recorded, else as the gate would give it now."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow.analysis.ledger import Rows, decision_of
from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import read_json
from canary_mlflow.files.limits import MAX_VERDICT
from canary_mlflow.policies import load_policy, policy_names
from canary_mlflow.registry.evidence import NamedEvidence
from canary_mlflow.registry.judging.assessment import Options, assess
from canary_mlflow.registry.policies.asked import policy_for
from canary_mlflow.reports.decision import Decision, Question, decision_from_dict
from canary_mlflow.tracking.stores.places import artifact_folder, without_password
from gates.judge import judge
from gates.model.policy import Policy
from gates.model.records import Run, Version

if TYPE_CHECKING:
    from mlflow import MlflowClient

NAME = "verdict.json"


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
    from mlflow.exceptions import MlflowException

    try:
        with tempfile.TemporaryDirectory() as folder:
            here = artifact_folder(client, session)
            path = here / NAME if here else Path(client.download_artifacts(session, NAME, folder))
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
