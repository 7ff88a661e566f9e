"""Finds out what caused an exception that ended a run: makes the run again, and the champion's code beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow.launching.makers import Launched, run_champion
from canary_mlflow.registry.judging.unregistered import champion_or_none
from canary_mlflow.shown import say
from canary_mlflow.tracking.reading.histories import read_version
from training.config import CanaryConfig
from training.crews import crew_for
from training.process import Result

if TYPE_CHECKING:
    from mlflow import MlflowClient


def recheck(
    client: MlflowClient, session: str, model: str, config: CanaryConfig, broken: Result, scratch: Path
) -> tuple[list[Result], str]:
    """The repeated run, if one was made, and why the champion's code was not available ('' if it was, or was not
    needed). The gate judges what they mean."""
    raised, seed = broken.raised, broken.seed
    if broken.failure != "error" or raised is None or raised.outside:
        return [], ""
    say(f"{raised} ended the run of seed {seed}; making it again")
    seeded = replace(config, seed=seed)
    with crew_for(seeded, scratch / "again", 1) as crew:
        again = crew.train_one(client, session, seeded, "again")
    champion = champion_or_none(client, model)
    if (again.failure, again.raised) != (broken.failure, raised) or champion is None:
        return [again], ""
    say(f"{raised} ended it again; making a run of champion version {champion}, seed {seed}")
    with Launched(client, session, "this session", ()) as maker:
        runs = read_version(client, model, champion, metrics=()).runs
        return [again], run_champion(maker, champion, runs, seed)
