"""Where runs are kept: the tracking store, resolved as MLflow does, made once, reached or refused in one line."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from filelock import FileLock, Timeout

from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.tracking.places import without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

LOCK_SECONDS = 120.0  # making a SQLite store takes 3 s on an idle machine
CHATTY = ("alembic", "mlflow.store.db.utils", "mlflow.tracking._tracking_service.utils")
# For the first contact only: MLflow's own defaults keep a user waiting for minutes before saying that nobody is there.
PROBE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


def prepare_store(uri: str | None = None) -> MlflowClient:
    """A client of the tracking store at `uri`, or of MLflow's own choice (MLFLOW_TRACKING_URI, ./mlflow.db).

    A SQLite store that does not exist is made, by one process, under a lock file beside it: three at once leave a
    database that no one can open. Relative SQLite paths become absolute in the client's URI. Raises StoreError,
    and UsageError for a kind of store that MLflow does not have.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    found = resolve(uri)
    with _lock(found), _quiet(), _environment(PROBE if found.startswith("http") else {}):
        if file := sqlite_file(found):
            _check_file(file)
            if not file.exists() or file.stat().st_size == 0:
                _create(file)
        elif not found.startswith("http"):
            _check_database(found)
        try:
            client = MlflowClient(tracking_uri=found, registry_uri=registry_for(found))
            client.search_experiments(max_results=1)
        except MlflowException as error:
            if "unsupported URI" in str(error):
                raise UsageError(
                    f"tracking store {found}: {urlsplit(found).scheme}:// is no kind of store that MLflow has here; "
                    "expected sqlite:///mlflow.db, another database's URI, or a server's http address"
                ) from error
            raise StoreError(_refusal(found, error)) from error
    return client


def resolve(uri: str | None) -> str:
    """The store's URI with nothing left to the working folder.

    Raises StoreError for a file store, UsageError for one in memory.
    """
    import mlflow

    found: str = uri or mlflow.get_tracking_uri()
    scheme = urlsplit(found).scheme
    if scheme in ("", "file") and os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() not in ("true", "1"):
        raise StoreError(
            f"tracking store {found}: a folder of files, which MLflow no longer writes; expected sqlite:///mlflow.db "
            "or a server's http address; set MLFLOW_TRACKING_URI (`mlflow migrate-filestore` moves old runs)"
        )
    file = sqlite_file(found)
    if file is None and scheme.partition("+")[0] == "sqlite":
        raise UsageError(
            f"tracking store {found}: a database in memory, which each process would have for itself; "
            "expected a file, such as sqlite:///mlflow.db"
        )
    return found if file is None else f"{found.partition(':///')[0]}:///{file}"


def registry_for(tracking_uri: str) -> str | None:
    """The guarded registry in the same database, unless the user has named one; a server guards its own (None)."""
    from canary_mlflow.registry.plugin import announce, guarded_uri

    announce()
    if os.environ.get("MLFLOW_REGISTRY_URI"):
        return None
    guarded = guarded_uri(tracking_uri)
    return None if guarded == tracking_uri else guarded


def sqlite_file(uri: str) -> Path | None:
    """The absolute path of a SQLite URI's database; None for any other store, or one in memory."""
    scheme, _, path = uri.partition(":///")
    path = path.partition("?")[0]
    if scheme.partition("+")[0] != "sqlite" or path in ("", ":memory:"):
        return None
    return Path(unquote(path)).absolute()


def experiment_id(client: MlflowClient, name: str) -> str:
    """The id of the experiment `name`, which is created when missing; safe when several processes ask at once."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException as error:
            experiment = client.get_experiment_by_name(name)  # another process was faster
            if experiment is None:
                raise StoreError(f"experiment {name!r}: {one_line(error)}") from error
    if experiment.lifecycle_stage == "deleted":
        raise StoreError(
            f"experiment {name!r}: it is deleted; expected an active one; `mlflow experiments restore "
            f"--experiment-id {experiment.experiment_id}`, or name another"
        )
    return str(experiment.experiment_id)


def _check_file(file: Path) -> None:
    """Fail now: MLflow retries an unusable database for 100 seconds."""
    import sqlite3

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{file.parent}: {error.strerror}; expected a folder for the tracking store") from error
    for place in (file.parent, file) if file.exists() else (file.parent,):
        if not os.access(place, os.W_OK):
            raise StoreError(f"{place}: not writable; expected a place for the tracking store; set MLFLOW_TRACKING_URI")
    if not file.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            connection.execute("SELECT name FROM sqlite_master LIMIT 1")
    except sqlite3.Error as error:
        raise StoreError(
            f"{file}: {one_line(error)}; expected an MLflow SQLite database; move it away, or set MLFLOW_TRACKING_URI"
        ) from error


def _create(file: Path) -> None:
    """Make the tables aside and move them in: a process killed half-way would leave a store that never opens."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    with tempfile.TemporaryDirectory(prefix=".mlflow-new-", dir=file.parent) as folder:
        made = Path(folder) / file.name
        try:
            MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments(max_results=1)
            os.replace(made, file)
        except (MlflowException, OSError) as error:
            raise StoreError(f"{file}: cannot make the tracking store: {one_line(error)}") from error


def _check_database(uri: str) -> None:
    """Connect once, without MLflow's ten retries."""
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
        raise StoreError(_refusal(uri, error)) from error


def _refusal(uri: str, error: Exception) -> str:
    why = one_line(error)
    if "Max retries exceeded" in why or "Connection refused" in why:
        why = "nobody answers there"
    hint = "start the server, or set MLFLOW_TRACKING_URI" if uri.startswith("http") else "set MLFLOW_TRACKING_URI"
    return f"tracking store {without_password(uri)}: {why}; expected a store that MLflow can use; {hint}"


@contextlib.contextmanager
def _lock(uri: str) -> Iterator[None]:
    """One process at a time makes or upgrades the tables. A server does so for itself."""
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
def _quiet() -> Iterator[None]:
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
    """Set what the user has not set, for a while."""
    added = {key: value for key, value in values.items() if key not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            os.environ.pop(key, None)
