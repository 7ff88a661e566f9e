"""What a verdict says of both sides' files: the code that the candidate's can run, and what is left of the champion's.

The verdict itself compares runs and stands whatever they are."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import one_line
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
    """That files of the champion are gone, or cannot be looked at; '' if all are there. They are listed, not read."""
    if number is None or (seal := seal_of(rows, champion := find_version(client, model, number))) is None:
        return ""
    sealed = dict(seal.facts.get("files") or {})
    if not sealed or seal.facts.get("weights") == Weights.NONE:
        return ""
    subject, see = f"the champion's files, version {number}", f"see canary verify-weights models:/{model}/{number}"
    try:
        there = set(names_at(client.get_model_version_download_uri(model, champion.version), client.tracking_uri))
    except Exception as error:  # noqa: BLE001  # each kind of store has errors of its own
        return f"{subject}: cannot be listed ({one_line(error)}); the verdict compares runs and stands"
    gone = sorted(sealed.keys() - there)
    if not gone:
        return ""
    what = "all" if len(gone) == len(sealed) else f"{len(gone)} of {len(sealed)}"
    return f"{subject}: {what} gone ({listed(gone)}); the verdict compares runs and stands; {see}"


def names_at(uri: str, store: str) -> Iterator[str]:
    """The relative names of all files at an address, as a seal has them."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
    from mlflow.utils.file_utils import local_file_uri_to_path
    from mlflow.utils.uri import is_local_uri

    place = behind_server(uri)
    if is_local_uri(place):
        folder = Path(local_file_uri_to_path(place))
        files = [folder] if folder.is_file() else folder.rglob("*")
        yield from (file.relative_to(folder).as_posix() for file in files if file.is_file())
        return
    at: list[Any] = [None]
    repository = get_artifact_repository(place, server_of(store) or None)
    while at:
        for one in repository.list_artifacts(at.pop()):
            if one.is_dir:
                at.append(one.path)
            else:
                yield posixpath.normpath(one.path)
