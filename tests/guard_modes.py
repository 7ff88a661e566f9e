"""The ways to run the guard, each for real: a store, the clients' access, and what an insider can reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import mlflow
import pytest
import sqlalchemy as sa
from cluster import binaries, cluster
from mlflow import MlflowClient
from servers import Server

from canary_mlflow.ledger.install import install, parse_guarded
from canary_mlflow.registry.plugin import guarded_store
from canary_mlflow.tracking.stores.store import prepare_store

GUARDS = ("champion=prod-*", "shadow=prod-*")  # besides every model that the ledger has a row about
PASSWORD = "a-password-of-the-tests"
ADMIN = {"MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": PASSWORD}
ROLE = "mlflow_server"


@dataclass(frozen=True, kw_only=True)
class Mode:
    """`front`: what clients are given. `owner`: the database as its owner; `inside`: as somebody who got at it, the
    file, or the role that the server serves as. `artifacts`: where a server keeps them. `user`: the environment of a
    client with all the rights there are."""

    name: str
    front: str
    owner: str
    inside: str
    folder: Path
    user: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_server(self) -> bool:
        return self.front.startswith("http")

    @property
    def artifacts(self) -> str:
        return str(self.folder / "artifacts") if self.is_server else ""

    def client(self) -> MlflowClient:
        """As any user has it."""
        return prepare_store(self.front)

    def stock(self) -> MlflowClient:
        """A client that goes to the database with MLflow's own store."""
        return stock_client(self.inside)

    def guard(self) -> Any:
        """The guarded store as the database's owner opens it, to look at what is there."""
        return guarded_store(self.owner, self.owner)

    def engine(self, uri: str = "") -> sa.Engine:
        return engine_of(uri or self.owner)


@cache
def stock_client(uri: str) -> MlflowClient:
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@cache
def engine_of(uri: str) -> sa.Engine:
    return sa.create_engine(uri)


def make(uri: str, role: str = "") -> None:
    """MLflow's tables and the guard's."""
    prepare_store(uri)
    install(engine_of(uri), [parse_guarded(text) for text in GUARDS], None, role)


@contextmanager
def embedded(folder: Path) -> Iterator[Mode]:
    uri = f"sqlite:///{folder}/mlflow.db"
    make(uri)
    yield Mode(name="embedded", front=uri, owner=uri, inside=uri, folder=folder)


@contextmanager
def sqlite_server(folder: Path) -> Iterator[Mode]:
    uri = f"sqlite:///{folder}/mlflow.db"
    make(uri)
    with Server(uri, folder, registry=f"canary+{uri}", app="canary") as server:
        yield Mode(name="server, SQLite", front=server.uri, owner=uri, inside=uri, folder=folder)


@contextmanager
def postgresql_server(folder: Path) -> Iterator[Mode]:
    with cluster() as postgres:
        uri = postgres.create("mlflow")
        make(uri)
        with Server(uri, folder, registry=f"canary+{uri}", app="canary") as server:
            yield Mode(name="server, PostgreSQL", front=server.uri, owner=uri, inside=uri, folder=folder)


@contextmanager
def split_roles(folder: Path) -> Iterator[Mode]:
    """With users too: the attacks come from an administrator, who has every right that MLflow can give."""
    with cluster() as postgres:
        postgres.run(f"CREATE ROLE {ROLE} LOGIN")
        owner, inside = postgres.create("mlflow"), postgres.uri("mlflow", ROLE)
        make(owner, ROLE)
        with Server(
            inside, folder, registry=f"canary+{inside}", app="canary-auth", environment=users(folder)
        ) as server:
            yield Mode(name="split roles", front=server.uri, owner=owner, inside=inside, folder=folder, user=ADMIN)


def users(folder: Path) -> dict[str, str]:
    """What MLflow's basic authentication needs: a file of users, and the first of them. Nobody may anything unasked."""
    config = folder / "auth.ini"
    config.write_text(
        f"[mlflow]\ndefault_permission = NO_PERMISSIONS\ndatabase_uri = sqlite:///{folder}/users.db\n"
        f"admin_username = admin\nadmin_password = {PASSWORD}\nauth_cache_ttl_seconds = 600\n"  # a hash takes 0.1 s
    )
    return {"MLFLOW_AUTH_CONFIG_PATH": str(config), "MLFLOW_FLASK_SERVER_SECRET_KEY": "of the tests"}


MODES = {
    "embedded": embedded,
    "server, SQLite": sqlite_server,
    "server, PostgreSQL": postgresql_server,
    "split roles": split_roles,
}


@contextmanager
def opened(name: str, folder: Path) -> Iterator[Mode]:
    """A mode by name, with MLflow's fluent functions and commands pointed at it."""
    if name not in ("embedded", "server, SQLite") and binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with MODES[name](folder) as mode, pytest.MonkeyPatch.context() as patch:
        for key, value in mode.user.items():
            patch.setenv(key, value)
        registry = mode.front if mode.is_server else f"canary+{mode.front}"
        patch.setenv("MLFLOW_TRACKING_URI", mode.front)  # MLflow sets both itself, and would leave them set
        patch.setenv("MLFLOW_REGISTRY_URI", registry)
        mlflow.set_tracking_uri(mode.front)
        mlflow.set_registry_uri(registry)
        try:
            yield mode
        finally:
            mlflow.set_registry_uri(None)
            mlflow.set_tracking_uri(None)
