"""MLflow's workspaces: the same name may be another model in each of them."""

from __future__ import annotations

from canary_mlflow.mlflow_internals import workspaces_enabled

DEFAULT = "default"  # the one that every registry has


def active_workspace() -> str:
    """The workspace that the current request, or MLFLOW_WORKSPACE, names; `default` if workspaces are not enabled."""
    if not workspaces_enabled():
        return DEFAULT
    from mlflow.utils.workspace_utils import resolve_entity_workspace_name

    return str(resolve_entity_workspace_name(None))
