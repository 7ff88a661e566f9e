"""The anchor: a pinned baseline that many small steps, each within one margin, cannot drift away from unseen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from canary_mlflow.reports.decision import SLOW_DRIFT
from canary_mlflow.tracking.histories import read_version
from gates.anchoring import anchored
from gates.judge import judge
from gates.policy import Policy
from gates.records import Run, Version
from gates.verdict import CheckOutcome, Outcome, Verdict

if TYPE_CHECKING:
    from mlflow import MlflowClient

ANCHOR = "anchor"


def anchor_number(client: MlflowClient, model: str) -> str | None:
    """The version that the alias names; None while it names none."""
    number = client.get_registered_model(model).aliases.get(ANCHOR)
    return None if number is None else str(number)


def anchor_runs(client: MlflowClient, model: str, champion: str | None) -> tuple[Run, ...]:
    """The runs of the anchor, a verdict's third side; none where the champion is the anchor, or nothing is."""
    number = anchor_number(client, model)
    return () if number is None or number == champion else read_version(client, model, number).runs


def pin_first(client: MlflowClient, model: str, version: str) -> None:
    """Make a first champion the anchor too. An anchor that is there stays: moving it is a decision for people."""
    if anchor_number(client, model) is None:
        client.set_registered_model_alias(model, ANCHOR, version)


def against_anchor(
    client: MlflowClient, policy: Policy, candidate: Version, verdict: Verdict, champion: str | None
) -> Verdict:
    """A PASS against the champion becomes a BLOCK where the anchor, at `anchor_margins` times the margins, is left
    behind; everything else stays as it is."""
    number = anchor_number(client, candidate.model) if verdict.outcome is Outcome.PASS else None
    if number is None or number in (champion, candidate.version):
        return verdict
    found = judge(anchored(policy), read_version(client, candidate.model, number), candidate)
    if found.outcome is not Outcome.BLOCK:
        said = f"against the anchor, version {number}, at {policy.anchor_margins:g} times the margins: {found.outcome}"
        return replace(verdict, notes=(*verdict.notes, said))
    blocking = [check for check in found.checks if check.outcome is CheckOutcome.BLOCK]
    return replace(
        verdict,
        outcome=found.outcome,
        reason_code=found.reason_code,
        reason=f"{SLOW_DRIFT} (version {number}): {found.reason}",
        checks=(*verdict.checks, *(replace(check, metric=f"{check.metric}, anchor") for check in blocking)),
    )
