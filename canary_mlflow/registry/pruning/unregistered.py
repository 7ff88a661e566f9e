"""Judged sessions without a version (a change in CI, runs that broke off), and whether they still need their files."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchRun
from canary_mlflow.registry.judging.records import session_of
from canary_mlflow.registry.pruning.needed import DAY_MS, Known, Terms
from canary_mlflow.tracking.stores.session import every_run, get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun


def judged_sessions(client: MlflowClient, known: Known) -> list[MlflowRun]:
    """A model's judged sessions without a version, newest first, from the experiments where its versions were
    trained."""
    evidence = {session_of(one) for one in known.versions.values()}
    experiments = experiments_of(client, evidence)
    judged = f"tags.`{tags.VERDICT}` LIKE '%'"
    asked = " AND ".join((tags.where(tags.ROLE, "session"), tags.where(tags.MODEL_NAME, known.model), judged))
    found = every_run(client, experiments, asked) if experiments else []
    return [run for run in found if run.info.run_id not in evidence]


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
    return str(run.data.tags.get(tags.VERDICT, ""))
