"""Uploads weights to the artifacts of a run: all of them, or none."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow.errors import StoreError, one_line
from canary_mlflow.tracking.stores.places import local_folder, without_password
from canary_mlflow.tracking.stores.session import get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient


def upload(client: MlflowClient, run_id: str, folder: Path, name: str, *, scratch: bool = False) -> None:
    """Put the files of `folder` under `name` in the run's artifacts; if not all arrive, those that did are removed.
    `scratch`: the folder is temporary and no longer written to, so on the artifacts' own disk hard links are enough.
    Raises StoreError."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    place = str(get_run(client, run_id).info.artifact_uri)
    try:
        fresh = not client.list_artifacts(run_id, name)
    except (MlflowException, OSError):
        fresh = False
    try:
        if (here := local_folder(place)) is not None:
            _one_by_one(client, run_id, folder, name, here if scratch else None)
        else:
            client.log_artifacts(run_id, str(folder), name)
    except (MlflowException, OSError) as error:
        if fresh:
            with suppress(Exception):  # some kinds of store cannot delete
                get_artifact_repository(place).delete_artifacts(name)
        raise StoreError(
            f"{folder}: cannot be kept in {without_password(place)}: {one_line(error)}; expected an artifact store "
            "with room for it; make room there, or delete old runs (mlflow gc)"
        ) from error


def _linked(file: Path, to: Path) -> bool:
    """Hard-link a file; False if another disk, an existing file or the filesystem does not allow it."""
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        os.link(file, to)
    except OSError:
        return False
    return True


def _one_by_one(client: MlflowClient, run_id: str, folder: Path, name: str, place: Path | None) -> None:
    """Upload file by file: MLflow writes a single file through a temporary name, but copies a folder straight to its
    place, where a killed process would leave half of it. `place`: a local folder to hard-link into, without a copy."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if place is not None and _linked(file, place / name / file.relative_to(folder)):
            continue
        parent = file.parent.relative_to(folder).as_posix()
        client.log_artifact(run_id, str(file), name if parent == "." else f"{name}/{parent}")
