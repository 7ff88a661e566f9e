"""Opens a database so that nothing is written: no lock file, no table, no row; one line if it cannot be read. Also
MLflow's tables, as far as they are read here without MLflow's own stores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from canary_mlflow.errors import StoreError, one_line
from canary_mlflow.tracking.stores.places import sqlite_file

PATIENCE = 30.0  # seconds to wait while a training writes; SQLite's default of 5 is short on a busy machine
WAL = b"\x02\x02"  # bytes 18 and 19 of a SQLite file that was last used with a write-ahead log


@contextmanager
def reading(uri: str) -> Iterator[sa.Connection]:
    """A connection that can only read. Raises StoreError, in one line, for whatever the database refuses."""
    try:
        with engine(uri).connect() as connection:
            yield connection
    except sa.exc.SQLAlchemyError as error:
        raise refused(error) from error


def refused(error: sa.exc.SQLAlchemyError) -> StoreError:
    """Why the database cannot be read, in one line."""
    why = one_line(getattr(error, "orig", None) or error)
    return StoreError(
        f"the database cannot be read ({why}); expected the tables of this MLflow; if it is from an older version: "
        "mlflow db upgrade"
    )


@lru_cache(maxsize=4)
def engine(uri: str) -> sa.Engine:
    """One engine per database and process."""
    if uri.partition(":")[0].partition("+")[0] != "sqlite":
        return sa.create_engine(uri, pool_pre_ping=True).execution_options(postgresql_readonly=True)
    made = sa.create_engine(read_only_uri(uri), connect_args={"timeout": PATIENCE})
    sa.event.listen(made, "connect", forbid_writing)
    return made


def read_only_uri(uri: str) -> str:
    """A read-only URI for a SQLite database if this account cannot write the file, or not beside it; any other URI
    unchanged: where one can write, a journal left by a killed process must be played back first."""
    file = sqlite_file(uri)
    if file is None or can_write(file):
        return uri
    # SQLite would have to make a write-ahead log's index beside the file; without a log there is nothing to index.
    alone = journal_of(file) == WAL and not Path(f"{file}-wal").exists()
    # With its driver's name: MLflow would make a folder called `file:` for a plain sqlite:///.
    return f"sqlite+pysqlite:///file:{quote(str(file))}?mode=ro&uri=true{'&immutable=1' if alone else ''}"


def can_write(file: Path) -> bool:
    """Whether this account may change the file and leave a journal or a lock beside it."""
    return os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)


def journal_of(file: Path) -> bytes:
    """The two bytes of the header that say how the database was last written."""
    try:
        with file.open("rb") as head:
            return head.read(20)[18:20]
    except OSError:
        return b""


def forbid_writing(connection: Any, _record: Any) -> None:
    """Turn on SQLite's own switch against writing."""
    connection.execute("PRAGMA query_only = ON")


def has_ledger(connection: sa.Connection) -> bool:
    """Whether the guard has ever been installed in this database."""
    return bool(sa.inspect(connection).has_table("canary_ledger"))


RUNS = sa.table("runs", *map(sa.column, ("run_uuid", "name", "status", "start_time", "end_time", "lifecycle_stage",
                                         "experiment_id", "artifact_uri")))  # fmt: skip
TAGS = sa.table("tags", *map(sa.column, ("run_uuid", "key", "value")))
PARAMS = sa.table("params", *map(sa.column, ("run_uuid", "key", "value")))
POINTS = sa.table("metrics", *map(sa.column, ("run_uuid", "key", "step", "timestamp", "value", "is_nan")))
LATEST = sa.table("latest_metrics", *map(sa.column, ("run_uuid", "key", "step", "timestamp", "value", "is_nan")))
EXPERIMENTS = sa.table("experiments", sa.column("experiment_id"))
MODELS = sa.table("registered_models", *map(sa.column, ("workspace", "name")))
ALIASES = sa.table("registered_model_aliases", *map(sa.column, ("workspace", "name", "alias", "version")))
VERSIONS = sa.table("model_versions", *map(sa.column, ("workspace", "name", "version", "creation_time", "source",
                                                       "storage_location", "current_stage")))  # fmt: skip
VERSION_TAGS = sa.table("model_version_tags", *map(sa.column, ("workspace", "name", "version", "key", "value")))

DELETED = "Deleted_Internal"  # the stage that MLflow gives a deleted version
