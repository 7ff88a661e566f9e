"""What a verdict says of both sides' files: code that the candidate's can run, files that the champion lacks."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING

from canary_mlflow.registry.guard.loading_code import LOADING, RESUMING
from canary_mlflow.registry.guard.seal import seal_of
from canary_mlflow.registry.guard.server_files import behind_server, server_of
from canary_mlflow.registry.versions import Weights, find_version
from gates.model.wording import listed

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.ledger.rows import Row


def code_notes(rows: Sequence[Row], found: ModelVersion) -> tuple[bool, list[str]]:
    """Whether loading the version can run code, as its seal says, and the notes on that."""
    seal = seal_of(rows, found)
    said = {} if seal is None else dict(seal.facts.get("code") or {})
    words = {LOADING: "loading its files can run code", RESUMING: "of its files, only a resumed training reads"}
    notes = [f"{word}: {listed(said[kind], 5)}" for kind, word in words.items() if said.get(kind)]
    return bool(said.get(LOADING)), notes


def champion_note(client: MlflowClient, rows: Sequence[Row], model: str, number: str | None) -> str:
    """That sealed files of the champion are missing, or cannot be looked for; '' if all are there. None is read."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    if number is None or (seal := seal_of(rows, find_version(client, model, number))) is None:
        return ""
    place = behind_server(client.get_model_version_download_uri(model, number))
    sealed = set(seal.facts.get("files") or ()) - {posixpath.basename(place)}  # a place that is a file has no listing
    if seal.facts.get("weights") == Weights.NONE or not sealed:
        return ""
    subject, stands = f"the champion's files, version {number}", "the verdict compares runs and stands"
    try:
        repository = get_artifact_repository(place, server_of(client.tracking_uri) or None)
        folders = {posixpath.dirname(name) or None for name in sealed}
        missing = sorted(sealed - {one.path for folder in folders for one in repository.list_artifacts(folder)})
    except Exception as error:  # noqa: BLE001  # each kind of store has errors of its own
        return f"{subject}: cannot be listed ({type(error).__name__}); {stands}"
    many = "all" if len(missing) == len(sealed) else f"{len(missing)} of {len(sealed)}"
    see = f"see canary verify-weights models:/{model}/{number}"
    return f"{subject}: {many} missing ({listed(missing)}); {stands}; {see}" if missing else ""
