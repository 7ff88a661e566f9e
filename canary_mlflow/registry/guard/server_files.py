"""Where a server's own files are: an `mlflow-artifacts:` address is meant for its clients, not for itself."""

from __future__ import annotations

import os
import posixpath
from urllib.parse import urlsplit

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
