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
