"""Finds the profile of what a user names, and that of the same model's champion."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow import tags
from canary_mlflow.errors import UsageError
from canary_mlflow.files.source import TooMuch, read_bytes
from canary_mlflow.registry.evidence import champion_beside, find_evidence
from canary_mlflow.tracking.reading.profile import FILE, Profile, Profiled, from_text
from canary_mlflow.tracking.stores.session import get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun


@dataclass(frozen=True, kw_only=True)
class ProfileTarget:
    """What a user named: its runs, and those of its model's champion, without the subject's own."""

    label: str
    runs: Sequence[str]
    champion: Sequence[str]


def find_profile_target(client: MlflowClient, text: str) -> ProfileTarget:
    """The subject that `text` names, as for registry.evidence; for a profile, what it is the profile of. Raises
    UsageError, NoSuchRun."""
    side = find_evidence(client, repeated_by(client, text) or text)
    runs = [run.run_id for run in side.evidence.runs]
    return ProfileTarget(label=side.label, runs=runs, champion=champion_beside(client, side))


def repeated_by(client: MlflowClient, text: str) -> str:
    """The session or run whose configuration a profile repeats; '' if `text` names no profile."""
    if "/" in text or "@" in text:
        return ""
    return str(get_run(client, text).data.tags.get(tags.PROFILE_OF, ""))


def find_profile(client: MlflowClient, runs: Sequence[str], champion: Sequence[str] = ()) -> Profiled | None:
    """The newest profile of these runs, with the champion's; None if there is none. Raises UsageError for a file that
    is not a profile."""
    own = newest(client, runs)
    if own is None:
        return None
    theirs = newest(client, champion)
    return Profiled(
        run_id=own,
        profile=read(client, own),
        champion_run=theirs or "",
        champion=None if theirs is None else read(client, theirs),
    )


def newest(client: MlflowClient, runs: Sequence[str]) -> str | None:
    """The run that holds the newest profile of these runs."""
    entities = [get_run(client, run) for run in runs]
    holders = [run for run in entities if tags.PROFILED in run.data.tags]
    for subject, experiment in {(subject_of(run), run.info.experiment_id) for run in entities}:
        query = f"{tags.where(tags.PROFILE_OF, subject)} AND attributes.status = 'FINISHED'"
        holders += client.search_runs([experiment], query, max_results=1, order_by=["attributes.start_time DESC"])
    return max(holders, key=lambda run: run.info.start_time).info.run_id if holders else None


def subject_of(run: MlflowRun) -> str:
    """The session of a run, else the run."""
    return str(run.data.tags.get(tags.PARENT_RUN) or run.info.run_id)


def read(client: MlflowClient, run_id: str) -> Profile:
    """The profile among a run's artifacts."""
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # for one file
    with tempfile.TemporaryDirectory(prefix="canary-profile-") as folder:
        path = Path(client.download_artifacts(run_id, FILE, folder))
        try:
            text = read_bytes(path).decode("utf-8", errors="replace")
        except TooMuch as error:
            raise UsageError(f"{FILE} of run {run_id} {error}") from error
    return from_text(text, f"{FILE} of run {run_id}")
