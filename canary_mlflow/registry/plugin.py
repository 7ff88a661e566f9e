"""The guard as an MLflow plugin: which URIs it handles, and how it is built.

MLflow loads this module while MLflow itself is half imported, and drops the plugin with only a warning if that fails:
so this module imports nothing from MLflow.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from canary_mlflow.registry.store import GuardedStore

SHORT = "canary"  # canary:sqlite:///…
PREFIX = f"{SHORT}+"  # canary+sqlite:///…; the same names stand as entry points in pyproject.toml
SCHEMES = (
    SHORT,
    *(f"{PREFIX}{name}" for name in ("sqlite", "postgresql", "postgresql+psycopg", "postgresql+psycopg2")),
)
SERVER_BACKEND = "_MLFLOW_SERVER_FILE_STORE"  # where `mlflow server` tells its workers their tracking store
SERVER_REGISTRY = "_MLFLOW_SERVER_REGISTRY_STORE"  # the same for the registry, if it has a separate one


def build_store(store_uri: str, tracking_uri: str | None = None) -> Any:
    """The registry store for a `canary…` URI. MLflow inspects the names of these two parameters."""
    return guarded_store(plain_uri(store_uri), os.environ.get(SERVER_BACKEND) or tracking_uri or "")


@lru_cache(maxsize=16)
def guarded_store(database: str, tracking_uri: str) -> GuardedStore:
    """One store per database and process, for MLflow and for ourselves."""
    from mlflow.environment_variables import MLFLOW_ENABLE_WORKSPACES

    from canary_mlflow.registry.store import GuardedStore, GuardedWorkspaceStore

    kind = GuardedWorkspaceStore if MLFLOW_ENABLE_WORKSPACES.get() else GuardedStore
    return kind(database, tracking_uri or database)


def plain_uri(uri: str) -> str:
    """The database behind a guarded URI; any other URI unchanged."""
    for start in (PREFIX, f"{SHORT}:"):
        if uri.startswith(start):
            return uri.removeprefix(start)
    return uri


def is_guarded(uri: str) -> bool:
    """Whether this plugin handles the URI."""
    return urlsplit(uri).scheme in SCHEMES


def guarded_uri(uri: str) -> str:
    """The guarded URI of a database; for anything else (a server, a database without triggers), the URI itself."""
    return f"{PREFIX}{uri}" if f"{PREFIX}{urlsplit(uri).scheme}" in SCHEMES else uri


def announce() -> None:
    """Register the plugin with MLflow if the package is on the path but not installed, and so has no entry points."""
    from mlflow.tracking._model_registry.utils import _get_store_registry

    from canary_mlflow.registry.migrations import watch

    watch()
    registry = _get_store_registry()
    for scheme in SCHEMES:
        if scheme not in registry._registry:
            registry.register(scheme, build_store)
