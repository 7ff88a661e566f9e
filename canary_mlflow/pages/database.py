"""The addresses of the server's two databases, which its pages only read."""

from __future__ import annotations

import os

from canary_mlflow.ledger.uris import plain_uri
from canary_mlflow.registry.plugin import SERVER_BACKEND, SERVER_REGISTRY


def tracking_uri() -> str:
    """The URI of the runs' database, as `mlflow server` gives it to its workers."""
    return os.environ[SERVER_BACKEND]


def registry_uri() -> str:
    """The URI of the database of models, aliases and ledger."""
    return plain_uri(os.environ.get(SERVER_REGISTRY) or tracking_uri())
