"""The first contact with a tracking store: one process at a time and quiet; a refusal takes seconds and one line."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from canary_mlflow.errors import StoreError, one_line
from canary_mlflow.tracking.stores.places import sqlite_file, without_password

LOCK_SECONDS = 120.0  # making a SQLite store takes 3 s on an idle machine
CHATTY = ("alembic", "mlflow.store.db.utils", "mlflow.tracking._tracking_service.utils")
# For the first contact only: by MLflow's own defaults, a user waits for minutes to hear that nobody is there.
PROBE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class _RaisedAnyway(logging.Filter):
    """Drops the page that MLflow logs about an error of its database: it then raises the error, which we report in one
    line."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("SQLAlchemy database error")


def spare_the_page() -> None:
    """Drop those pages from now on; calling it again changes nothing."""
    logging.getLogger("mlflow.store.db.utils").addFilter(_RAISED_ANYWAY)


_RAISED_ANYWAY = _RaisedAnyway()


@contextlib.contextmanager
def first_contact(uri: str) -> Iterator[None]:
    """Let one process at a time in, without MLflow's long retries and its chatter. Raises StoreError."""
    with _locked(uri), quietly(), _environment(PROBE if uri.startswith("http") else {}):
        yield


def check_file(file: Path) -> None:
    """Raise StoreError at once for an unusable database file, which MLflow would retry for 100 seconds."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{file.parent}: {error.strerror}; expected a folder for the tracking store") from error
    for place in (file.parent, file) if file.exists() else (file.parent,):
        if not os.access(place, os.W_OK):
            raise StoreError(f"{place}: not writable; expected a place for the tracking store; set MLFLOW_TRACKING_URI")
    if file.exists():
        check_sqlite(file)


def check_sqlite(file: Path) -> None:
    """Raise StoreError for a file that is not a SQLite database."""
    import sqlite3

    try:
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            connection.execute("SELECT name FROM sqlite_master LIMIT 1")
    except sqlite3.Error as error:
        raise StoreError(
            f"{file}: {one_line(error)}; expected an MLflow SQLite database; move it away, or set MLFLOW_TRACKING_URI"
        ) from error


def create_sqlite(file: Path) -> None:
    """Make the database under another name and move it into place: a process killed half-way would otherwise leave a
    store that never opens."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    with tempfile.TemporaryDirectory(prefix=".mlflow-new-", dir=file.parent) as folder:
        made = Path(folder) / file.name
        try:
            MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments(max_results=1)
            os.replace(made, file)
        except (MlflowException, OSError) as error:
            raise StoreError(f"{file}: cannot make the tracking store: {one_line(error)}") from error


def check_database(uri: str) -> None:
    """Connect once, without MLflow's ten retries. Raises StoreError."""
    import sqlalchemy
    from mlflow.store.db.db_types import DATABASE_ENGINES

    if urlsplit(uri).scheme.partition("+")[0] not in DATABASE_ENGINES:
        return
    timeout = {"connect_timeout": 10} if uri.startswith("postgresql") else {}
    try:
        engine = sqlalchemy.create_engine(uri, connect_args=timeout, poolclass=sqlalchemy.pool.NullPool)
        with engine.connect():
            pass
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
        raise StoreError(refusal(uri, error)) from error


def check_schema(uri: str) -> None:
    """Raise StoreError for a database whose tables another MLflow made: MLflow may migrate them when it opens them, and
    whoever has the other one is then locked out."""
    import sqlalchemy as sa
    from mlflow.store.db.utils import _get_latest_schema_revision

    with sa.create_engine(uri, poolclass=sa.pool.NullPool).connect() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return
        found = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    if found != (expected := _get_latest_schema_revision()):
        shown = without_password(uri)
        raise StoreError(
            f"tracking store {shown}: another MLflow made it (schema {found}); expected schema {expected}, which the "
            "installed one has; install that MLflow, or stop everything that uses the store, back it up, and run: "
            f"canary db upgrade --tracking-uri {shown}"
        )


def refusal(uri: str, error: Exception) -> str:
    """Why a store cannot be used, in one line without its password."""
    why = one_line(error)
    if "canary guard: " in why:
        return why
    if "Max retries exceeded" in why or "Connection refused" in why:
        why = "nobody answers there"
    hint = "start the server, or set MLFLOW_TRACKING_URI" if uri.startswith("http") else "set MLFLOW_TRACKING_URI"
    return f"tracking store {without_password(uri)}: {why}; expected a store that MLflow can use; {hint}"


@contextlib.contextmanager
def _locked(uri: str) -> Iterator[None]:
    """Let one process at a time make or upgrade the tables. A tracking server does that itself."""
    if uri.startswith("http"):
        yield
        return
    file = sqlite_file(uri)
    digest = hashlib.sha256(uri.encode()).hexdigest()[:16]
    place = f"{file}.lock" if file else f"{tempfile.gettempdir()}/canary-mlflow-{os.getuid()}-{digest}.lock"
    lock = FileLock(place)
    try:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout as error:
        raise StoreError(
            f"{place}: held for {LOCK_SECONDS:.0f} s by another process; expected a store to be ready in seconds; "
            "end that process, then try again"
        ) from error
    except OSError as error:
        raise StoreError(
            f"{place}: {error.strerror}; expected a writable folder for the tracking store; set MLFLOW_TRACKING_URI"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep 60 lines of migration history off the screen."""
    before = {name: logging.getLogger(name).level for name in CHATTY}
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set, for a while, the environment variables that the user has not set."""
    added = {key: value for key, value in values.items() if key not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            os.environ.pop(key, None)
