"""The anchor: a pinned baseline from which many small steps, each within one margin, cannot drift away unseen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from canary_mlflow.gates.evidence.clocks import judged_in_pairs
from canary_mlflow.gates.judge import judge
from canary_mlflow.gates.model.policy import FreshBaseline, Policy
from canary_mlflow.gates.model.records import Run, Version
from canary_mlflow.gates.model.verdict import CheckOutcome, Outcome, Verdict
from canary_mlflow.gates.model.wording import listed, sentence_case
from canary_mlflow.registry.sessions.orders import version_with
from canary_mlflow.registry.versions import ANCHOR
from canary_mlflow.reports.decision import SLOW_DRIFT

if TYPE_CHECKING:
    from mlflow import MlflowClient


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
