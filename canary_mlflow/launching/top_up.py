"""Carries out a registered version's plan of looks, with runs that MLflow Projects launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from canary_mlflow.errors import UsageError
from canary_mlflow.launching.on_cluster import maker_for
from canary_mlflow.launching.plan import Plan
from canary_mlflow.registry.evidence import is_own_script
from canary_mlflow.registry.judging.records import session_of
from canary_mlflow.registry.versions import find_version
from canary_mlflow.reports.decision import Decision
from canary_mlflow.tracking.reading.histories import read_version
from gates.model.policy import Policy

if TYPE_CHECKING:
    from mlflow import MlflowClient


def top_up(
    client: MlflowClient,
    model: str,
    version: str,
    policy: Policy,
    say: Callable[[str], None],
    *,
    dry_run: bool = False,
    promote: bool | None = None,
    launcher: str = "local",
) -> Decision:
    """Carry out the plan for a registered version, with runs launched through MLflow Projects. `promote`: see `gate`;
    `launcher`: local or ray.

    Raises NoSource if the candidate's code is not available, UsageError for a version without runs of a canary.
    """
    found = find_version(client, model, version)
    session, made = session_of(found), read_version(client, model, version, metrics=()).runs
    if session is None or not made or is_own_script(client, found):
        raise UsageError(
            f"version {version} of {model!r}: it has no session that `canary run` made; expected one; another "
            "script must make its own runs: in a session with more seeds, registered as a new version"
        )
    subject = f"{model} version {version}"
    with maker_for(launcher, client, session, subject, made, say, connect=not dry_run) as maker:
        return Plan(
            client=client,
            model=model,
            version=version,
            policy=policy,
            maker=maker,
            say=say,
            dry_run=dry_run,
            promote=promote,
        ).carry_out()
