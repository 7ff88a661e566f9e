"""The tracking store: resolved as MLflow does, made once, reached or refused in one line."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.ledger.migrations import watch
from canary_mlflow.ledger.uris import SCHEMES, guarded_uri, is_guarded
from canary_mlflow.tracking.stores.contact import (
    check_database,
    check_file,
    check_schema,
    check_sqlite,
    create_sqlite,
    first_contact,
    quietly,
    refusal,
    spare_the_page,
)
from canary_mlflow.tracking.stores.places import sqlite_file
from canary_mlflow.tracking.stores.read_only import read_only_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

# As pyproject.toml names it. Nobody here depends on the guard: only MLflow loads it, once a registry is asked for.
GUARD = EntryPoint("canary", "canary_mlflow.registry.plugin:build_store", "mlflow.model_registry_store")


def prepare_store(uri: str | None = None) -> MlflowClient:
    """A client of the tracking store at `uri`, or of MLflow's own choice (MLFLOW_TRACKING_URI, ./mlflow.db).

    A SQLite store that does not exist is made by one process under a lock file beside it: three at once would leave a
    database that nobody can open. Relative SQLite paths become absolute in the client's URI. Raises StoreError, and
    UsageError for a kind of store that MLflow does not have.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    found = resolve(uri)
    spare_the_page()
    with first_contact(found):
        if file := sqlite_file(found):
            check_file(file)
            if not file.exists() or file.stat().st_size == 0:
                create_sqlite(file)
        elif not found.startswith("http"):
            check_database(found)
        if is_guarded(guarded_uri(found)):  # SQLite or PostgreSQL
            check_schema(found)
        try:
            client = MlflowClient(tracking_uri=found, registry_uri=registry_for(found))
            client.search_experiments(max_results=1)
        except MlflowException as error:
            if "unsupported URI" in str(error):
                raise UsageError(
                    f"tracking store {found}: {urlsplit(found).scheme}:// is not a kind of store that MLflow has here; "
                    "expected sqlite:///mlflow.db, another database's URI, or a server's http address"
                ) from error
            raise StoreError(refusal(found, error)) from error
    return client


def reading_store(uri: str | None) -> MlflowClient:
    """A client for reading. With SQLite it makes and locks nothing, and opens a file that cannot be written read-only.
    Raises StoreError if there is no store yet."""
    from mlflow import MlflowClient

    found = resolve(uri)
    file = sqlite_file(found)
    if file is None:
        return prepare_store(uri)
    refuse_missing(file)
    check_sqlite(file)
    place = read_only_uri(found)
    check_schema(place)
    with quietly():
        client = MlflowClient(tracking_uri=place, registry_uri=os.environ.get("MLFLOW_REGISTRY_URI") or place)
        client.search_experiments(max_results=1)
    return client


def refuse_missing(file: Path) -> None:
    """Raise StoreError if no run has made a store yet."""
    if not file.exists():
        raise StoreError(
            f"{file}: no store there; expected one that a run has made; `canary run` makes it, "
            "--tracking-uri names another"
        )


def existing_store(uri: str | None) -> MlflowClient:
    """As `prepare_store`, but never makes a store: raises StoreError if there is none yet."""
    file = sqlite_file(resolve(uri))
    if file is not None:
        refuse_missing(file)
    return prepare_store(uri)


def resolve(uri: str | None) -> str:
    """The store's URI, independent of the working folder.

    Raises StoreError for a file store, and UsageError for one in memory or for an empty name, which is a variable that
    a CI job was not given: MLflow would take it as not set, and each job would get its own store.
    """
    import mlflow

    named = uri if uri is not None else os.environ.get("MLFLOW_TRACKING_URI")
    if named is not None and not named.strip():
        found = "found an empty name" if uri is not None else "MLFLOW_TRACKING_URI is set, and empty"
        raise UsageError(
            f"tracking store: {found}; expected the store that holds the champion; set MLFLOW_TRACKING_URI (in CI: a "
            "variable that this job can read), or unset it for ./mlflow.db"
        )
    found = uri or str(mlflow.get_tracking_uri())
    scheme = urlsplit(found).scheme
    if scheme in ("", "file") and os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() not in ("true", "1"):
        raise StoreError(
            f"tracking store {found}: a folder of files, which MLflow no longer writes; expected sqlite:///mlflow.db "
            "or a server's http address; set MLFLOW_TRACKING_URI (`mlflow migrate-filestore` moves old runs)"
        )
    file = sqlite_file(found)
    if file is None and scheme.partition("+")[0] == "sqlite":
        raise UsageError(
            f"tracking store {found}: a database in memory, of which each process would have its own; "
            "expected a file, such as sqlite:///mlflow.db"
        )
    return found if file is None else f"{found.partition(':///')[0]}:///{file}"


def registry_for(tracking_uri: str) -> str | None:
    """The URI of the guarded registry in the same database; None if the user named a registry, or for a server, which
    guards its own."""
    announce()
    if os.environ.get("MLFLOW_REGISTRY_URI"):
        return None
    guarded = guarded_uri(tracking_uri)
    return None if guarded == tracking_uri else guarded


def announce() -> None:
    """Tell MLflow of the guard, as entry points do where the package is installed and not only on the path."""
    from mlflow.tracking._model_registry.utils import _get_store_registry

    watch()
    registry = _get_store_registry()
    for scheme in SCHEMES:
        if scheme not in registry._registry:
            registry.register(scheme, _build_guard)


def _build_guard(store_uri: str, tracking_uri: str | None = None) -> Any:
    """The registry of a guarded database. MLflow inspects the names of these two parameters."""
    return GUARD.load()(store_uri, tracking_uri)


def experiment_id(client: MlflowClient, name: str) -> str:
    """The id of the experiment `name`, which is created if missing; safe when several processes ask at once."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException as error:
            experiment = client.get_experiment_by_name(name)  # another process was faster
            if experiment is None:
                raise StoreError(f"experiment {name!r}: {one_line(error)}") from error
    if experiment.lifecycle_stage == "deleted":
        raise StoreError(
            f"experiment {name!r}: it is deleted; expected an active one; `mlflow experiments restore "
            f"--experiment-id {experiment.experiment_id}`, or name another"
        )
    return str(experiment.experiment_id)
