"""The guard as an MLflow plugin: how the registry of a guarded database is built.

MLflow loads this module while MLflow itself is half imported, and drops the plugin with only a warning if that fails:
so this module imports nothing from MLflow.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from canary_mlflow.ledger.uris import plain_uri
from canary_mlflow.mlflow_internals import require_guard, workspaces_enabled

if TYPE_CHECKING:
    from canary_mlflow.registry.guard.store import GuardedStore

SERVER_BACKEND = "_MLFLOW_SERVER_FILE_STORE"  # where `mlflow server` tells its workers their tracking store
SERVER_REGISTRY = "_MLFLOW_SERVER_REGISTRY_STORE"  # the same for the registry, if it has a separate one


def build_store(store_uri: str, tracking_uri: str | None = None) -> Any:
    """The registry store for a `canary…` URI. MLflow inspects the names of these two parameters."""
    return guarded_store(plain_uri(store_uri), os.environ.get(SERVER_BACKEND) or tracking_uri or "")


@lru_cache(maxsize=16)
def guarded_store(database: str, tracking_uri: str) -> GuardedStore:
    """One store per database and process, for MLflow and for ourselves."""
    require_guard(f"guarded registry in {database}")
    from canary_mlflow.registry.guard.store import GuardedStore, GuardedWorkspaceStore

    kind = GuardedWorkspaceStore if workspaces_enabled() else GuardedStore
    return kind(database, tracking_uri or database)
