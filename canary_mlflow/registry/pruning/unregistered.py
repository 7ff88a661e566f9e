"""Judged sessions without a version (a change in CI, runs that broke off), and whether they still need their files."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from canary_mlflow.errors import NoSuchRun
from canary_mlflow.registry.judging.records import session_of
from canary_mlflow.registry.pruning.needed import DAY_MS, Known, Terms
from canary_mlflow.registry.versions import quoted
from canary_mlflow.tracking.stores.session import get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

PAGE = 1000


def judged_sessions(client: MlflowClient, known: Known) -> list[MlflowRun]:
    """A model's judged sessions without a version, newest first, from the experiments where its versions were
    trained."""
    evidence = {session_of(one) for one in known.versions.values()}
    experiments = experiments_of(client, evidence)
    asked = f"tags.`canary.role` = 'session' AND tags.`canary.model_name` = {quoted(known.model)}"
    found: list[MlflowRun] = []
    page = None
    while experiments:
        answer = client.search_runs(
            experiments, f"{asked} AND tags.`canary.verdict` LIKE '%'", max_results=PAGE, page_token=page
        )
        found += [run for run in answer if run.info.run_id not in evidence]
        if not (page := answer.token):
            break
    return found


def experiments_of(client: MlflowClient, run_ids: Iterable[str | None]) -> list[str]:
    """The experiments of those runs that exist."""
    found = set()
    for run_id in filter(None, run_ids):
        with suppress(NoSuchRun):
            found.add(str(get_run(client, run_id).info.experiment_id))
    return sorted(found)


def why_session_stays(run: MlflowRun, terms: Terms) -> str:
    """Why a session without a version needs its files, in a few words; "" for one that may go."""
    if verdict_on(run) == "INCONCLUSIVE":
        return "INCONCLUSIVE: not decided"
    if terms.older_than and time.time() * 1000 - int(run.info.start_time) < terms.older_than * DAY_MS:
        return f"younger than {terms.older_than:g} days"
    return ""


def verdict_on(run: MlflowRun) -> str:
    """The last verdict on a session."""
    return str(run.data.tags.get("canary.verdict", ""))
