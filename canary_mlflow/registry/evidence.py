"""The champion's runs, and what the runs of a version say about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canary_mlflow.errors import NoSuchModel
from canary_mlflow.gates.model.verdict import Verdict
from canary_mlflow.registry.versions import champion_number, find_version
from canary_mlflow.reports.decision import RunWarning
from canary_mlflow.tags import ROLE, SEED, SESSION_ID
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.reading.facts import warnings_in
from canary_mlflow.tracking.reading.histories import read_runs
from canary_mlflow.tracking.stores.session import child_runs, get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


def champion_runs(client: MlflowClient, model: str) -> list[str]:
    """The ids of the champion's runs; empty if there is no such model, or no champion."""
    try:
        number = champion_number(client, model)
    except NoSuchModel:
        return []
    found = None if number is None else find_version(client, model, number)
    session = "" if found is None else (found.tags or {}).get(SESSION_ID, "")
    children = child_runs(client, session) if session else []
    return [run.info.run_id for run in children if run.data.tags.get(ROLE) == "run"]


def work_of_champion(client: MlflowClient, model: str) -> dict[str, str]:
    """The workload that the champion's runs declare; empty if there is no champion, or its runs declare none."""
    declared = (run.workload for run in read_runs(client, champion_runs(client, model), metrics=()))
    return dict(next((workload for workload in declared if workload), {}))


def is_own_script(client: MlflowClient, found: ModelVersion) -> bool:
    """Whether a version was registered from a session itself (`canary register`), and not from a canary's run."""
    return bool(found.run_id) and get_run(client, found.run_id).data.tags.get(ROLE) == "session"


def warnings_of(client: MlflowClient, verdict: Verdict) -> tuple[RunWarning, ...]:
    """What the watch said about the candidate's runs."""
    found = [(run_id, expanded(get_run(client, run_id).data.tags)) for run_id in verdict.candidate_runs]
    return tuple(
        RunWarning(run=f"seed {tags[SEED]}" if SEED in tags else f"run {run_id}", warning=warning)
        for run_id, tags in found
        for warning in warnings_in(tags)
    )
