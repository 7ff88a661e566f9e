"""MLflow's inner names that some release lacks, and the release from which each is there (docs/compatibility.md); its
workspaces, in each of which the same name may be another model."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

from canary_mlflow.errors import UsageError

GUARD_FROM = (3, 10)  # registry tables by workspace, as our triggers and the ledger know them
READ_REPLICAS_FROM = (3, 14)  # ManagedSessionMaker(read_only=…)


@cache
def release() -> tuple[int, int]:
    """The installed MLflow's major and minor number."""
    major, minor = version("mlflow").split(".")[:2]
    return int(major), int(minor)


def can_guard() -> bool:
    return release() >= GUARD_FROM


def require_guard(what: str) -> None:
    """Raise UsageError if no alias can be guarded with this MLflow."""
    if not can_guard():
        raise UsageError(
            f"{what}: found MLflow {version('mlflow')}; expected 3.10 or later, from which on an alias can be guarded; "
            "a newer server guards its own registry, whatever its clients have"
        )


def workspaces_enabled() -> bool:
    if not can_guard():
        return False
    from mlflow.environment_variables import MLFLOW_ENABLE_WORKSPACES

    return bool(MLFLOW_ENABLE_WORKSPACES.get())


def writing(store: Any) -> Any:
    """A session of an SQL store that may write; where MLflow knows read replicas, that has to be said."""
    return store.ManagedSessionMaker(**({"read_only": False} if release() >= READ_REPLICAS_FROM else {}))


DEFAULT = "default"  # the one that every registry has


def active_workspace() -> str:
    """The workspace that the current request, or MLFLOW_WORKSPACE, names; `default` if workspaces are not enabled."""
    if not workspaces_enabled():
        return DEFAULT
    from mlflow.utils.workspace_utils import resolve_entity_workspace_name

    return str(resolve_entity_workspace_name(None))
