"""The server's two databases, opened so that nothing can be written, and the sentence when one cannot be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from canary_mlflow.errors import StoreError, one_line
from canary_mlflow.registry.plugin import SERVER_BACKEND, SERVER_REGISTRY, plain_uri

PATIENCE = 30.0  # seconds to wait while a training writes; SQLite's own 5 are short on a busy machine


def tracking_uri() -> str:
    """The database of the runs, as `mlflow server` tells its workers."""
    return os.environ[SERVER_BACKEND]


def registry_uri() -> str:
    """The database of models, aliases and ledger."""
    return plain_uri(os.environ.get(SERVER_REGISTRY) or tracking_uri())


@contextmanager
def reading(uri: str) -> Iterator[sa.Connection]:
    """A connection that can only read. Raises StoreError, in one line, for whatever the database refuses."""
    try:
        with engine(uri).connect() as connection:
            yield connection
    except sa.exc.SQLAlchemyError as error:
        why = one_line(getattr(error, "orig", None) or error)
        raise StoreError(
            f"the database cannot be read ({why}); expected the tables of this MLflow; if it is from an older version: "
            "mlflow db upgrade"
        ) from error


@lru_cache(maxsize=4)
def engine(uri: str) -> sa.Engine:
    """One engine per database and process."""
    if uri.partition(":")[0].partition("+")[0] != "sqlite":
        return sa.create_engine(uri, pool_pre_ping=True).execution_options(postgresql_readonly=True)
    made = sa.create_engine(uri, connect_args={"timeout": PATIENCE})
    sa.event.listen(made, "connect", forbid_writing)
    return made


def forbid_writing(connection: Any, _record: Any) -> None:
    """SQLite's own switch."""
    connection.execute("PRAGMA query_only = ON")


def has_ledger(connection: sa.Connection) -> bool:
    """Whether the guard has ever been installed in this database."""
    return sa.inspect(connection).has_table("canary_ledger")
