"""Acts on a verdict in a registry without the guard: its server has none, or its database lacks our triggers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from canary_mlflow.errors import BaselineMoved
from canary_mlflow.registry.judging import records
from canary_mlflow.registry.judging.anchor import pin_first
from canary_mlflow.registry.locks import registry_lock
from canary_mlflow.registry.versions import CHAMPION, champion_number
from canary_mlflow.reports.decision import Decision

if TYPE_CHECKING:
    from mlflow import MlflowClient


def enact_unguarded(client: MlflowClient, decision: Decision) -> Decision:
    """Record the verdict and move the alias. Stock MLflow has no compare-and-set, so the alias is read again just
    before it is moved. Raises BaselineMoved."""
    assert decision.version is not None
    with registry_lock(client):
        now = champion_number(client, decision.model)
        if now != decision.champion_before:
            raise BaselineMoved(
                f"{decision.model!r}: the champion became {spoken(now)} while version {decision.version} was judged "
                f"against {spoken(decision.champion_before)}; expected it to stay; gate it again"
            )
        for key, value in records.verdict_tags(decision).items():
            client.set_model_version_tag(decision.model, decision.version, key, value)
        if decision.moves:
            client.set_registered_model_alias(decision.model, CHAMPION, decision.version)
            if decision.bootstrapped:
                pin_first(client, decision.model, decision.version)
    return promoted(decision)


def promoted(decision: Decision) -> Decision:
    """The decision, marked as having promoted its version if it moves the alias."""
    if not decision.moves:
        return decision
    return replace(decision, promoted=True, champion_after=decision.version)


def spoken(number: str | None) -> str:
    """`version 3`, or `none`."""
    return "none" if number is None else f"version {number}"
