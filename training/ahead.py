"""Starts the processes of a session's first runs before the session itself has loaded MLflow: both take seconds."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from shutil import rmtree

from canary_mlflow.policies import load_policy
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.plain import to_plain
from canary_mlflow.training.preflight import runs_of
from canary_mlflow.training.process import Worker, workers


def workers_of(config: CanaryConfig, scratch: Path, repeats: int) -> AbstractContextManager[Iterator[Worker]]:
    """A fresh process for each of `repeats` seeds."""
    return workers(_folders(config, scratch, repeats), to_plain(config), config.algo.name, config.hardware.threads)


def _folders(config: CanaryConfig, scratch: Path, repeats: int) -> dict[Path, int]:
    return {scratch / f"seed-{seed}": seed for seed in range(config.seed, config.seed + repeats)}


def first_runs(config: CanaryConfig) -> int:
    """How many runs a session makes before its first verdict: `repeats` if given; with top-up, those of the first
    look."""
    policy = load_policy(config.gate)
    planned = policy.looks.runs[0] if policy.top_up and config.repeats is None else runs_of(config)
    return min(planned, runs_of(config))


@contextmanager
def begun(config: CanaryConfig, scratch: Path, check: Callable[[], object]) -> Iterator[Iterator[Worker] | None]:
    """The processes of a session's first runs, which load their libraries while `check` says whether there may be a
    session at all; None if the runs are made on other machines. What `check` raises leaves no process and no new
    folder."""
    if config.launcher.name != "local":
        check()
        yield None
        return
    repeats, allowed = first_runs(config), False
    folders = _folders(config, scratch, repeats)
    new = [folder for folder in (*folders, scratch, *scratch.parents) if not folder.exists()]
    try:
        with workers_of(config, scratch, repeats) as workers:
            check()
            allowed = True
            yield workers
    finally:
        if not allowed:  # the processes have ended
            _remove(new, folders)


def _remove(new: Sequence[Path], folders: Container[Path]) -> None:
    """Remove new folders, inner ones first: runs' folders with all that is in them, others unless a second session
    has begun there."""
    for folder in new:
        if folder in folders:
            rmtree(folder, ignore_errors=True)
        else:
            with suppress(OSError):
                folder.rmdir()
