"""One registration at a time on an embedded store: MLflow gives up after three lost races for one number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from canary_mlflow.errors import StoreError
from canary_mlflow.ledger.uris import plain_uri
from canary_mlflow.tracking.stores.places import sqlite_file

if TYPE_CHECKING:
    from mlflow import MlflowClient

WAIT_SECONDS = 60.0


def registry_uri(client: MlflowClient) -> str:
    """Where the client keeps model versions (MLflow 3 offers no public name for it)."""
    return str(client._registry_uri)


@contextmanager
def registry_lock(client: MlflowClient, wait: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold the registry's lock file if it is SQLite; a server's store is left to its own transactions.

    Raises StoreError if somebody else holds it for longer than `wait` seconds.
    """
    file = sqlite_file(plain_uri(registry_uri(client)))
    if file is None:
        yield
        return
    lock = FileLock(f"{file}.registry.lock")
    try:
        lock.acquire(timeout=wait)
    except Timeout as error:
        raise StoreError(
            f"registry lock: {lock.lock_file} has been held for {wait:.0f} s; expected a promotion to take less "
            "than one; end the process that holds it, then try again"
        ) from error
    try:
        yield
    finally:
        lock.release()
