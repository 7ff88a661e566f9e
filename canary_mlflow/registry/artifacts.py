"""Finds the profile or the samples of what a user names, and those of the same model's champion."""

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
from canary_mlflow.registry.evidence import champion_runs
from canary_mlflow.resolve import NamedEvidence, find_evidence, version_name
from canary_mlflow.tracking.reading import profile
from canary_mlflow.tracking.reading.profile import Profile, Profiled
from canary_mlflow.tracking.reading.samples import FILE, Answer, read
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
    """The subject that `text` names, as for `find_evidence`; for a profile, what it is the profile of. Raises
    UsageError, NoSuchRun."""
    side = find_evidence(client, repeated_by(client, text) or text)
    runs = [run.run_id for run in side.evidence.runs]
    return ProfileTarget(label=side.label, runs=runs, champion=champion_beside(client, side))


def repeated_by(client: MlflowClient, text: str) -> str:
    """The session or run whose configuration a profile repeats; '' if `text` names no profile."""
    if version_name(text) is not None:
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
        profile=read_profile(client, own),
        champion_run=theirs or "",
        champion=None if theirs is None else read_profile(client, theirs),
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


def read_profile(client: MlflowClient, run_id: str) -> Profile:
    """The profile among a run's artifacts."""
    return profile.from_text(*text_of(client, run_id, profile.FILE))


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """One run's answers. `champion`: those of one of the champion's runs, empty if there is none."""

    run_id: str
    answers: list[Answer]
    champion_run: str
    champion: list[Answer]


def find_samples(client: MlflowClient, text: str) -> Sampled:
    """The samples of what `text` names, as for `find_evidence`. Raises UsageError if none of its runs has samples."""
    side = find_evidence(client, text)
    found = first_with_samples(client, [run.run_id for run in side.evidence.runs])
    if found is None:
        raise UsageError(
            f"{side.label}: no run has {FILE}; expected one that was recorded with samples (tracking.samples, "
            "CanaryCallback(samples=True)), of an algorithm that answers, and not pruned since"
        )
    champion = first_with_samples(client, champion_beside(client, side))
    return Sampled(
        run_id=found[0],
        answers=found[1],
        champion_run="" if champion is None else champion[0],
        champion=[] if champion is None else champion[1],
    )


def first_with_samples(client: MlflowClient, run_ids: list[str]) -> tuple[str, list[Answer]] | None:
    """The first run with samples, and its answers; None if no run has any."""
    for run_id in run_ids:
        if any(item.path == FILE for item in client.list_artifacts(run_id)):
            return run_id, read(*text_of(client, run_id, FILE))
    return None


def text_of(client: MlflowClient, run_id: str, name: str) -> tuple[str, str]:
    """The text of a file among a run's artifacts, and what to call it. Raises UsageError for one that is none of ours:
    ours are smaller."""
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # for one file
    called = f"{name} of run {run_id}"
    with tempfile.TemporaryDirectory(prefix="canary-artifact-") as folder:
        try:
            found = read_bytes(Path(client.download_artifacts(run_id, name, folder)))
        except TooMuch as error:
            raise UsageError(f"{called} {error}") from error
    return found.decode("utf-8", errors="replace"), called


def champion_beside(client: MlflowClient, side: NamedEvidence) -> list[str]:
    """The runs of the champion of a side's model, without the side's own; empty if it has no model, or no champion."""
    own, model = [run.run_id for run in side.evidence.runs], side.evidence.model
    if own and not model:  # a single run: its session knows
        parent = get_run(client, own[0]).data.tags.get(tags.PARENT_RUN, "")
        model = get_run(client, parent).data.tags.get(tags.MODEL_NAME, "") if parent else ""
    return [run for run in champion_runs(client, model) if run not in own] if model else []
