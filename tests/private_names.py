"""Every private name of MLflow, and of its Alembic, that this project uses and cannot work without."""

from __future__ import annotations

from importlib import import_module

# module, attribute (dotted where it is an attribute of a class)
NAMES = (
    ("mlflow", "MlflowClient.__init__"),  # sets `_registry_uri`, which no public name gives
    ("mlflow.entities.model_registry", "RegisteredModel._is_prompt"),
    ("mlflow.entities.model_registry.model_version_stages", "STAGE_DELETED_INTERNAL"),
    ("mlflow.entities.model_registry.model_version_stages", "get_canonical_stage"),
    ("mlflow.store.model_registry.dbmodels.models", "SqlModelVersion"),
    ("mlflow.store.model_registry.dbmodels.models", "SqlModelVersionTag"),
    ("mlflow.store.model_registry.dbmodels.models", "SqlRegisteredModel"),
    ("mlflow.store.model_registry.dbmodels.models", "SqlRegisteredModelAlias"),
    ("mlflow.store.model_registry.sqlalchemy_store", "SqlAlchemyStore._get_active_workspace"),
    ("mlflow.store.model_registry.sqlalchemy_store", "SqlAlchemyStore._get_or_create_engine"),
    ("mlflow.store.model_registry.sqlalchemy_store", "SqlAlchemyStore._get_query"),
    ("mlflow.store.model_registry.sqlalchemy_store", "SqlAlchemyStore._get_registered_model"),
    ("mlflow.store.model_registry.sqlalchemy_store", "SqlAlchemyStore._get_sql_model_version"),
    ("mlflow.store.model_registry.sqlalchemy_workspace_store", "WorkspaceAwareSqlAlchemyStore"),
    ("mlflow.store.db.utils", "_get_alembic_config"),
    ("mlflow.store.db.utils", "_get_latest_schema_revision"),
    ("mlflow.store.db.utils", "_upgrade_db"),
    ("mlflow.utils.import_hooks", "register_post_import_hook"),
    ("alembic.script", "ScriptDirectory._upgrade_revs"),
    ("mlflow.tracking._model_registry.utils", "_get_store_registry"),
    ("mlflow.tracking.registry", "StoreRegistry.register"),
    ("mlflow.webhooks.delivery", "deliver_webhook"),  # public by name, but undocumented
)
# Columns that the ledger's triggers and the reading of runs name in SQL.
COLUMNS = (
    ("registered_models", ("workspace", "name")),
    ("registered_model_aliases", ("workspace", "name", "alias", "version")),
    (
        "model_versions",
        ("workspace", "name", "version", "creation_time", "source", "storage_location", "run_id", "current_stage"),
    ),
    ("model_version_tags", ("workspace", "name", "version", "key", "value")),
    ("metrics", ("run_uuid", "key", "step", "timestamp", "value", "is_nan")),
    ("latest_metrics", ("run_uuid", "key")),
    ("tags", ("run_uuid", "key", "value")),
    ("params", ("run_uuid", "key", "value")),
    ("runs", ("run_uuid", "lifecycle_stage")),
)


def missing(names: tuple[tuple[str, str], ...] = NAMES) -> list[str]:
    """The names that this MLflow does not have."""
    found = []
    for module, path in names:
        try:
            value: object = import_module(module)
            for part in path.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError):
            found.append(f"{module}:{path}")
    return found
