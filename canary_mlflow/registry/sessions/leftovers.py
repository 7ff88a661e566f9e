"""Cleans up after killed processes: runs that read RUNNING, folders, worktrees. The next process ends and removes them.

On the same machine a lease ends with its process. From another machine, only the heartbeat shows whether a process is
still alive.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from canary_mlflow import tags
from canary_mlflow.tracking.reading.facts import whole
from canary_mlflow.tracking.stores import owner
from canary_mlflow.tracking.stores.owner import remove_left_behind
from canary_mlflow.tracking.stores.session import close_run, every_run, get_run, log_tags
from canary_mlflow.tracking.stores.store import existing_store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

EXPIRED = 1800.0  # seconds without one: longer than a usable store is ever away, shorter than a user's patience


def clear(client: MlflowClient) -> None:
    """End and remove what killed processes left behind, and report it; called when a session is opened."""
    remove_left_behind()
    if (ended := close_left_open(client)) and sys.stderr is not None:
        runs = "run" if ended == 1 else "runs"
        with suppress(OSError, ValueError):  # nobody reads stderr any more
            sys.stderr.write(f"canary: ended {ended} {runs} of processes that were killed, as FAILED\n")


def left_open(client: MlflowClient) -> list[Run]:
    """The runs that still read RUNNING though the process that held them is gone."""
    running = _running(client)
    gone = {text for text in {_lease_of(run) for run in running} if text and _is_over(text, running)}
    parents = {run.info.run_id for run in running if _lease_of(run) in gone}
    return [
        run
        for run in running
        if _lease_of(run) in gone or (not _lease_of(run) and run.data.tags.get(tags.PARENT_RUN) in parents)
    ]


def close_left_open(client: MlflowClient) -> int:
    """End these runs as FAILED (interrupted), and return how many there were. What such a session registered without a
    seal is removed."""
    found = left_open(client)
    for run in found:
        held_by = owner.read(_lease_of(run))
        who = f" (pid {held_by.pid} on {held_by.host})" if held_by else ""
        _close(client, run, f"its process{who} ended without saying why")
    return len(found)


def close_own() -> None:
    """End the runs that this process holds open, or that `mlflow run` made for it: a signal has stopped it, perhaps
    while it opened or ended one. MLflow ends its own run only on Ctrl-C."""
    client, mine = existing_store(None), owner.this_process().to_text()
    found = [run for run in _running(client) if _lease_of(run) == mine]
    if given := os.environ.get("MLFLOW_RUN_ID"):
        run = get_run(client, given)
        found += [run] if run.info.status == "RUNNING" and not _lease_of(run) else []
    for run in found:
        _close(client, run, "its process was stopped")


def _close(client: MlflowClient, run: Run, reason: str) -> None:
    if tags.PARENT_RUN in run.data.tags and run.data.tags.get(tags.ROLE) != "session":
        close_run(client, run.info.run_id, "interrupted", reason)
        return
    drop_unsealed(client, run.info.run_id)
    log_tags(client, run.info.run_id, {tags.FAILURE: "interrupted", tags.FAILURE_REASON: reason})
    client.set_terminated(run.info.run_id, "FAILED")


def _running(client: MlflowClient) -> list[Run]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return every_run(client, experiments, f"attributes.status = 'RUNNING' AND tags.`{tags.ROLE}` LIKE '%'")


def _lease_of(run: Run) -> str:
    return str(run.data.tags.get(tags.LEASE, ""))


def _is_over(text: str, running: Sequence[Run]) -> bool:
    """Whether a lease has ended: its process is gone, or has not been heard from for long."""
    holder = owner.read(text)
    if holder is None:
        return False
    if (gone := owner.is_gone(holder)) is not None:
        return gone
    beats = [run.data.tags.get(tags.HEARTBEAT, "") for run in running if _lease_of(run) == text]
    heard = max((beat for beat in map(whole, beats) if beat is not None), default=None)
    return heard is not None and time.time() - heard > EXPIRED


def drop_unsealed(client: MlflowClient, session_id: str) -> None:
    """Delete the version that a session registered without reaching its seal: such a version is never judged."""
    for found in client.search_model_versions(tags.where(tags.SESSION_ID, session_id)):
        if tags.SEAL not in (found.tags or {}):
            client.delete_model_version(found.name, found.version)
