"""Makes a session a model version: registered and sealed, or not there at all."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.registry.guard.seal import seal_version
from canary_mlflow.registry.locks import registry_lock
from canary_mlflow.registry.sessions.rows import record_runs
from canary_mlflow.registry.versions import Weights, ensure_model

if TYPE_CHECKING:
    from mlflow import MlflowClient


def register_version(
    client: MlflowClient,
    model_name: str,
    session_id: str,
    source_run_id: str,
    *,
    weights: Weights = Weights.FILES,
    evaluation: Mapping[str, Any] | None = None,
) -> str:
    """Register `model/` of one run of a session (or of the session itself), with the session as its evidence, and seal
    it; returns the version's number. `evaluation`: what the run found when it evaluated its saved weights again.

    The model is created if it is missing. Sessions that end at the same moment get different numbers.
    """
    record_runs(client, session_id, model_name)
    source = f"{client.get_run(source_run_id).info.artifact_uri}/model"
    with registry_lock(client):  # SQLite stores give up after three lost races for one number
        ensure_model(client, model_name)
        known = {tags.SESSION_ID: session_id}
        version = client.create_model_version(model_name, source, run_id=source_run_id, tags=known)
    number = str(version.version)
    try:
        seal_version(client, model_name, number, weights=weights, evaluation=evaluation)
    except BaseException:  # a signal too
        with suppress(Exception):
            drop_unsealed(client, session_id)
        raise
    return number


def drop_unsealed(client: MlflowClient, session_id: str) -> None:
    """Delete the version that a session registered without reaching its seal: such a version is never judged."""
    for found in client.search_model_versions(tags.where(tags.SESSION_ID, session_id)):
        if tags.SEAL not in (found.tags or {}):
            client.delete_model_version(found.name, found.version)
