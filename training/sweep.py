"""Hydra's --multirun as one MLflow parent run with every job's runs as its children."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from mlflow import MlflowClient

from canary_mlflow.tracking.leftovers import clear, held
from canary_mlflow.tracking.session import child_runs, finish_session, open_session
from canary_mlflow.tracking.store import prepare_store
from training import launch
from training.config import CanaryConfig, TrackingConfig

PARENT = "CANARY_PARENT_RUN_ID"


def run_sweep(tracking: TrackingConfig, argv: Sequence[str], jobs: Callable[[Sequence[str]], object]) -> int:
    """Have `jobs` run all that `argv` asks for under one parent run, which is ended however they end.

    Returns 0 when every run finished, 1 when one was unstable, 4 when something outside failed.
    """
    client = prepare_store(tracking.uri)
    clear(client)
    parent = open_session(client, tracking.experiment, "sweep", {"canary.role": "sweep"})
    try:
        with held(client, parent):
            # Hydra sets it in the jobs of every launcher, on this machine or another.
            jobs([*argv, f"+hydra.job.env_set.{PARENT}={parent}"])
    finally:
        # Whatever the jobs raised: those in other processes can tell how they ended through their runs alone.
        code = _close(client, parent)
    return code


def run_job(config: CanaryConfig, scratch: Path) -> int:
    """The runs of one job: one seed unless `repeats` says otherwise. Sweeps gather; they do not gate."""
    repeats = config.repeats or 1
    with launch.crew_of(config, scratch, repeats) as crew:
        client = prepare_store(config.tracking.uri)
        results = launch.train_runs(client, os.environ[PARENT], config, crew, repeats)
    return max((launch.code_of(result) for result in results), default=0)


def _close(client: MlflowClient, parent: str) -> int:
    """End the parent run and say how the sweep ended."""
    runs = child_runs(client, parent)
    failures = [run.data.tags.get("canary.failure", "") for run in runs if run.info.status != "FINISHED"]
    code = max((launch.code_of_failure(failure or "error") for failure in failures), default=0 if runs else 4)
    finish_session(client, parent, "FINISHED" if code == 0 else "FAILED")
    print(f"canary: sweep {parent}: {len(runs) - len(failures)} of {len(runs)} runs finished", file=sys.stderr)
    return code
