"""Finds the samples of what a user names, and those of the same model's champion."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow.errors import UsageError
from canary_mlflow.files.source import TooMuch, read_bytes
from canary_mlflow.registry.evidence import champion_beside, find_evidence
from canary_mlflow.tracking.reading.samples import FILE, Answer, read

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """One run's answers. `champion`: those of one of the champion's runs, empty if there is none."""

    run_id: str
    answers: list[Answer]
    champion_run: str
    champion: list[Answer]


def find_samples(client: MlflowClient, text: str) -> Sampled:
    """The samples of what `text` names, as for registry.evidence. Raises UsageError if none of its runs has samples."""
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
            with tempfile.TemporaryDirectory(prefix="canary-samples-") as folder:
                path = Path(client.download_artifacts(run_id, FILE, folder))
                try:
                    text = read_bytes(path).decode("utf-8", errors="replace")
                except TooMuch as error:  # no table of ours: that is smaller
                    raise UsageError(f"{FILE} of run {run_id} {error}") from error
            return run_id, read(text, f"{FILE} of run {run_id}")
    return None
