"""Holds runs open: a heartbeat in the store shows other machines that the process behind them is alive."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from canary_mlflow.tracking.stores.owner import heartbeat, lease
from canary_mlflow.tracking.stores.session import log_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient

EVERY = 120.0  # seconds between two heartbeats


@contextmanager
def held(client: MlflowClient, *run_ids: str) -> Iterator[None]:
    """Hold runs open for a while. The heartbeat of the first counts for all runs with the same lease."""
    over = threading.Event()
    for run_id in run_ids:
        log_tags(client, run_id, lease() | heartbeat())

    def beat() -> None:
        while not over.wait(EVERY):
            with suppress(Exception):  # a store that is away for a while: the next one will do
                log_tags(client, run_ids[0], heartbeat())

    threading.Thread(target=beat, name="canary-heartbeat", daemon=True).start()
    try:
        yield
    finally:
        over.set()
