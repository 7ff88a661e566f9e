"""The three kinds of registry, behind one protocol; which one a client uses is found here alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canary_mlflow.ledger.uris import guarded_uri, is_guarded, plain_uri
from canary_mlflow.registry.backends.database import Database
from canary_mlflow.registry.backends.server import Server, is_guarded_server
from canary_mlflow.registry.backends.stock import Stock

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.registry.backends.registry import Registry


def registry_of(client: MlflowClient) -> Registry:
    """The registry that a client uses. Raises StoreError for a server that does not answer."""
    uri = plain_uri(str(client._registry_uri))  # MLflow 3 offers no public name for it
    if is_guarded(guarded_uri(uri)):
        return Database(client, uri)
    if uri.startswith(("http://", "https://")) and is_guarded_server(uri):
        return Server(client, uri)
    return Stock(client)
