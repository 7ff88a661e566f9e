"""The tracking store: resolved as MLflow does, made once, and reached or refused by one process at a time, quietly, in
seconds and in one line."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.ledger.migrations import watch
from canary_mlflow.ledger.uris import SCHEMES, guarded_uri
from canary_mlflow.tracking.stores.places import sqlite_file, without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

# As pyproject.toml names it. Nobody here depends on the guard: only MLflow loads it, once a registry is asked for.
GUARD = EntryPoint("canary", "canary_mlflow.registry.plugin:build_store", "mlflow.model_registry_store")


def prepare_store(uri: str | None = None) -> MlflowClient:
    """A client of the tracking store at `uri`, or of MLflow's own choice (MLFLOW_TRACKING_URI, ./mlflow.db).

    A SQLite store that does not exist is made by one process under a lock file beside it: three at once would leave a
    database that nobody can open. Relative SQLite paths become absolute in the client's URI. Raises StoreError, and
    UsageError for a kind of store that MLflow does not have.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    found = resolve(uri)
    spare_the_page()
    with first_contact(found):
        if file := sqlite_file(found):
            check_file(file)
            if not file.exists() or file.stat().st_size == 0:
                create_sqlite(file)
        elif not found.startswith("http"):
            check_database(found)
        if urlsplit(found).scheme.partition("+")[0] in ("sqlite", "postgresql"):
            check_schema(found)
        try:
            client = MlflowClient(tracking_uri=found, registry_uri=registry_for(found))
            client.search_experiments(max_results=1)
        except MlflowException as error:
            if "unsupported URI" in str(error):
                raise UsageError(
                    f"tracking store {found}: {urlsplit(found).scheme}:// is not a kind of store that MLflow has here; "
                    "expected sqlite:///mlflow.db, another database's URI, or a server's http address"
                ) from error
            raise StoreError(refusal(found, error)) from error
    return client


def reading_store(uri: str | None) -> MlflowClient:
    """A client for reading. With SQLite it makes and locks nothing, and opens a file that cannot be written read-only.
    Raises StoreError if there is no store yet."""
    from mlflow import MlflowClient

    from canary_mlflow.tracking.stores.read_only import read_only_uri

    found = resolve(uri)
    file = sqlite_file(found)
    if file is None:
        return prepare_store(uri)
    refuse_missing(file)
    check_sqlite(file)
    place = read_only_uri(found)
    check_schema(place)
    with quietly():
        client = MlflowClient(tracking_uri=place, registry_uri=os.environ.get("MLFLOW_REGISTRY_URI") or place)
        client.search_experiments(max_results=1)
    return client


def refuse_missing(file: Path) -> None:
    """Raise StoreError if no run has made a store yet."""
    if not file.exists():
        raise StoreError(
            f"{file}: no store there; expected one that a run has made; `canary run` makes it, "
            "--tracking-uri names another"
        )


def existing_store(uri: str | None) -> MlflowClient:
    """As `prepare_store`, but never makes a store: raises StoreError if there is none yet."""
    file = sqlite_file(resolve(uri))
    if file is not None:
        refuse_missing(file)
    return prepare_store(uri)


def resolve(uri: str | None) -> str:
    """The store's URI, independent of the working folder.

    Raises StoreError for a file store, and UsageError for one in memory or for an empty name, which is a variable that
    a CI job was not given: MLflow would take it as not set, and each job would get its own store.
    """
    import mlflow

    named = uri if uri is not None else os.environ.get("MLFLOW_TRACKING_URI")
    if named is not None and not named.strip():
        found = "found an empty name" if uri is not None else "MLFLOW_TRACKING_URI is set, and empty"
        raise UsageError(
            f"tracking store: {found}; expected the store that holds the champion; set MLFLOW_TRACKING_URI (in CI: a "
            "variable that this job can read), or unset it for ./mlflow.db"
        )
    found = uri or str(mlflow.get_tracking_uri())
    scheme = urlsplit(found).scheme
    if scheme in ("", "file") and os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() not in ("true", "1"):
        raise StoreError(
            f"tracking store {found}: a folder of files, which MLflow no longer writes; expected sqlite:///mlflow.db "
            "or a server's http address; set MLFLOW_TRACKING_URI (`mlflow migrate-filestore` moves old runs)"
        )
    file = sqlite_file(found)
    if file is None and scheme.partition("+")[0] == "sqlite":
        raise UsageError(
            f"tracking store {found}: a database in memory, of which each process would have its own; "
            "expected a file, such as sqlite:///mlflow.db"
        )
    return found if file is None else f"{found.partition(':///')[0]}:///{file}"


def registry_for(tracking_uri: str) -> str | None:
    """The URI of the guarded registry in the same database; None if the user named a registry, or for a server, which
    guards its own."""
    announce()
    if os.environ.get("MLFLOW_REGISTRY_URI"):
        return None
    guarded = guarded_uri(tracking_uri)
    return None if guarded == tracking_uri else guarded


def announce() -> None:
    """Tell MLflow of the guard, as entry points do where the package is installed and not only on the path."""
    from mlflow.tracking._model_registry.utils import _get_store_registry

    watch()
    registry = _get_store_registry()
    for scheme in SCHEMES:
        if scheme not in registry._registry:
            registry.register(scheme, _build_guard)


def _build_guard(store_uri: str, tracking_uri: str | None = None) -> Any:
    """The registry of a guarded database. MLflow inspects the names of these two parameters."""
    return GUARD.load()(store_uri, tracking_uri)


ABOUT = {
    "mlflow.experimentKind": "custom_model_development",  # else MLflow guesses, and opens an empty one as GenAI
    "mlflow.note.content": "A row is a session of canary-mlflow, named by its last verdict and what was changed; below "
    "it are its runs, one for each seed. A blocked session reads FAILED, as a check that failed; its runs read "
    "as they ended.",
}  # fmt: skip


def experiment_id(client: MlflowClient, name: str) -> str:
    """The id of the experiment `name`, which is created if missing; safe when several processes ask at once."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, tags=ABOUT))
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


# ---- the first contact -----------------------------------------------------------------------------------------------


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
