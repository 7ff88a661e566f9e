"""Hydra's --multirun as one MLflow parent run with every job's runs as its children."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict

from canary_mlflow.tracking.session import child_runs, finish_session, open_session
from canary_mlflow.tracking.store import prepare_store
from training import launch
from training.config import CanaryConfig

PARENT = "CANARY_PARENT_RUN_ID"  # reaches the jobs of every launcher through Hydra's env_set


class _Sweep:
    """The multirun of this process; Hydra makes the callback itself, so it cannot be handed one."""

    parent: str | None = None
    tracking_uri: str | None = None
    code: int | None = None


class SweepCallback(Callback):
    """Opens the parent run before the jobs and closes it after them, however they ended."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        client = prepare_store(config.tracking.uri)
        parent = open_session(client, config.tracking.experiment, "sweep", {"canary.role": "sweep"})
        _Sweep.parent, _Sweep.tracking_uri = parent, client.tracking_uri
        with open_dict(config.hydra):
            config.hydra.overrides.hydra.append(f"+hydra.job.env_set.{PARENT}={parent}")
        # Hydra does not call on_multirun_end when a job raises.
        atexit.register(_close)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        _close()


def is_job() -> bool:
    """Whether this is one job of a multirun."""
    return HydraConfig.get().mode == RunMode.MULTIRUN


def was_multirun() -> bool:
    """Whether this process led a multirun."""
    return _Sweep.parent is not None


def exit_code() -> int:
    """0 when every run finished, 1 when one was unstable, 4 when something outside failed."""
    return _close()


def run_job(config: CanaryConfig, scratch: Path) -> int:
    """The runs of one job: one seed unless `repeats` says otherwise. Sweeps gather; they do not gate."""
    repeats = config.repeats or 1
    with launch.crew_of(config, scratch, repeats) as crew:
        client = prepare_store(config.tracking.uri)
        results = launch.train_runs(client, os.environ[PARENT], config, crew, repeats)
    return max((launch.code_of(result) for result in results), default=0)


def _close() -> int:
    """Say how the sweep ended; the first call decides."""
    if _Sweep.parent is None:
        return 0
    if _Sweep.code is None:
        client = prepare_store(_Sweep.tracking_uri)
        runs = child_runs(client, _Sweep.parent)
        failures = [run.data.tags.get("canary.failure", "") for run in runs if run.info.status != "FINISHED"]
        _Sweep.code = max(
            (launch.code_of_failure(failure or "error") for failure in failures), default=0 if runs else 4
        )
        finish_session(client, _Sweep.parent, "FINISHED" if _Sweep.code == 0 else "FAILED")
        print(
            f"canary: sweep {_Sweep.parent}: {len(runs) - len(failures)} of {len(runs)} runs finished", file=sys.stderr
        )
    return _Sweep.code
