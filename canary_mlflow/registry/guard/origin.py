"""Where a version's files are, and where they come from: a verdict on runs tells nothing about the files of other runs.

A server's own files are elsewhere for the server itself: an `mlflow-artifacts:` address is meant for its clients.
"""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from canary_mlflow import tags
from canary_mlflow.errors import UsageError
from canary_mlflow.registry.versions import session_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.gates.model.records import Version


DESTINATION = "_MLFLOW_SERVER_ARTIFACT_DESTINATION"  # where `mlflow server` tells its workers their artifact store


def behind_server(uri: str, destination: str = "") -> str:
    """The place behind an `mlflow-artifacts:` address; any other address unchanged.

    `destination`: the server's artifact store; not needed in the server's own process, which knows it.
    """
    destination = destination or os.environ.get(DESTINATION, "")
    address = urlsplit(uri)
    if address.scheme != "mlflow-artifacts" or not destination:
        return uri
    path = posixpath.normpath(address.path.lstrip("/"))
    if path.startswith("..") or posixpath.isabs(path):
        return uri
    return posixpath.join(destination, path)


def server_of(store: str = "") -> str:
    """The address of the server that `mlflow-artifacts:` addresses are of: the store, else MLflow's own setting; '' if
    neither is a server."""
    import mlflow

    return next((one for one in (store, mlflow.get_tracking_uri()) if one.startswith("http")), "")


def out_of_reach(uri: str, destination: str = "", store: str = "") -> str:
    """What to say of a server's files if nobody says where it is, or where it keeps them, for then they are neither
    missing nor changed, but not looked at; '' for all others."""
    known = destination or os.environ.get(DESTINATION) or server_of(store)
    if known or not uri.startswith("mlflow-artifacts:"):
        return ""
    return (
        f"{uri}: a server keeps these files; expected to be told where; --artifacts with the server's "
        "--artifacts-destination, or its address in MLFLOW_TRACKING_URI and the database in --tracking-uri"
    )


def refuse_foreign_evidence(client: MlflowClient, found: ModelVersion, candidate: Version) -> None:
    """Raise UsageError for a version whose files do not come from one of the runs by which it would be judged."""
    runs = [run.run_id for run in candidate.runs]
    if runs and found.run_id and found.run_id not in (*runs, session_of(found)):
        raise UsageError(
            f"version {found.version} of {found.name!r}: its source run {found.run_id} is not in the session whose "
            f"runs would speak for it ({session_of(found)}); expected one of them; register it with "
            "its own session"
        )
    if runs and not found.run_id:
        raise UsageError(
            f"version {found.version} of {found.name!r}: it names no source run, while the runs of session "
            f"{session_of(found)} would speak for it; expected one of them; register it with run_id"
        )
    if runs and not comes_from(client, str(found.source), str(found.run_id)):
        raise UsageError(
            f"version {found.version} of {found.name!r}: its source {found.source} is not among the artifacts of its "
            f"run {found.run_id}; expected files that the run logged; log them to it, or give the run the tag "
            f"{tags.MODEL_SOURCE} with their place"
        )


def comes_from(client: MlflowClient, source: str, run_id: str) -> bool:
    """Whether the run itself vouches for the files: they are its artifacts, a model that it logged, or named by its
    tag.

    Any client may register any place under any run's id: MLflow checks only sources in its own artifact store.
    """
    scheme, path = urlsplit(source).scheme, urlsplit(source).path.strip("/")
    seen: set[str] = set()
    while scheme == "models" and "/" in path:  # a copy of a version; MLflow keeps the run's id with it
        if path in seen:
            return False  # a cycle: a model that was deleted and recreated as a copy of its copy
        seen.add(path)
        name, _, version = path.rpartition("/")
        source = str(client.get_model_version(name, version).source)
        scheme, path = urlsplit(source).scheme, urlsplit(source).path.strip("/")
    if scheme == "models":  # a model that a run logged; its id has no version
        return path.startswith("m-") and bool(client.get_logged_model(path).source_run_id == run_id)
    if scheme == "runs":
        return path.partition("/")[0] == run_id
    run = client.get_run(run_id)
    return is_within(source, str(run.info.artifact_uri)) or is_within(source, run.data.tags.get(tags.MODEL_SOURCE, ""))


def is_within(place: str, root: str) -> bool:
    """Whether a URI equals another or lies below it, with dots resolved; as written, and after each decoding, because
    MLflow decodes on loading: `%2e%2e` leads out of a folder, and `%2f` is part of a name until it is decoded."""
    while bool(root) and _below(place, root):
        decoded = unquote(place), unquote(root)
        if decoded == (place, root):
            return True
        place, root = decoded
    return False


def _below(place: str, root: str) -> bool:
    plain = [posixpath.normpath(uri.removeprefix("file://")) for uri in (place, root)]
    return plain[0] == plain[1] or plain[0].startswith(f"{plain[1]}/")
