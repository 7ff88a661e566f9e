"""MLflow's tables, as far as they are read here without MLflow's own stores."""

from __future__ import annotations

import sqlalchemy as sa

RUNS = sa.table("runs", *map(sa.column, ("run_uuid", "name", "status", "start_time", "end_time", "lifecycle_stage",
                                         "experiment_id", "artifact_uri")))  # fmt: skip
TAGS = sa.table("tags", *map(sa.column, ("run_uuid", "key", "value")))
PARAMS = sa.table("params", *map(sa.column, ("run_uuid", "key", "value")))
POINTS = sa.table("metrics", *map(sa.column, ("run_uuid", "key", "step", "timestamp", "value", "is_nan")))
LATEST = sa.table("latest_metrics", *map(sa.column, ("run_uuid", "key", "step", "timestamp", "value", "is_nan")))
EXPERIMENTS = sa.table("experiments", sa.column("experiment_id"))
MODELS = sa.table("registered_models", *map(sa.column, ("workspace", "name")))
ALIASES = sa.table("registered_model_aliases", *map(sa.column, ("workspace", "name", "alias", "version")))
VERSIONS = sa.table("model_versions", *map(sa.column, ("workspace", "name", "version", "creation_time", "source",
                                                       "storage_location", "current_stage")))  # fmt: skip
VERSION_TAGS = sa.table("model_version_tags", *map(sa.column, ("workspace", "name", "version", "key", "value")))

DELETED = "Deleted_Internal"  # the stage that MLflow gives a deleted version
