"""A PostgreSQL cluster for the tests: a free port, a temporary folder, an account that is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import forking
import pytest
import sqlalchemy as sa
from filelock import FileLock

TABLES = "mlflow_tables"
ACCOUNTS = ("postgres", "nobody")  # initdb refuses root


def binaries() -> Path | None:
    """Where initdb is: on the path, or where Debian puts it."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    on_path = shutil.which("initdb")
    return found[0].parent if found else Path(on_path).parent if on_path else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A running server; `trust` for everybody on the loopback."""

    port: int

    def uri(self, database: str, role: str = "owner") -> str:
        return f"postgresql+psycopg://{role}@127.0.0.1:{self.port}/{database}"

    def run(self, *statements: str, database: str = "postgres", role: str = "owner") -> None:
        engine = sa.create_engine(self.uri(database, role), isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
        with engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def create(self, name: str) -> str:
        """The URI of a new database with MLflow's tables and nothing in them; without any, outside the tests."""
        self.run(f"CREATE DATABASE {name}" + (f" TEMPLATE {TABLES}" if ready() else ""))
        return self.uri(name)


@contextmanager
def cluster(disk: Path | None = None) -> Iterator[Cluster]:
    """Start one whose files lie on `disk`, and stop it. `binaries()` must be there."""
    kept = ready()
    with folder_of_cluster(disk) as (folder, prefix):
        if kept is None:
            initialise(folder, prefix)
        else:
            subprocess.run(["cp", "-a", str(kept), f"{folder}/data"], check=True)
        with started(folder, prefix, "immediate") as made:
            yield made


@contextmanager
def folder_of_cluster(disk: Path | None = None) -> Iterator[tuple[Path, list[str]]]:
    """A folder, and the words before a command by which it runs as who owns it."""
    folder = Path(tempfile.mkdtemp(prefix="canary-postgres-", dir=disk))
    prefix: list[str] = []
    if os.getuid() == 0:
        account = next(pwd.getpwnam(name) for name in ACCOUNTS if any(one.pw_name == name for one in pwd.getpwall()))
        os.chown(folder, account.pw_uid, account.pw_gid)
        prefix = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    try:
        yield folder, prefix
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def initialise(folder: Path, prefix: list[str]) -> None:
    command = [*prefix, f"{binaries()}/initdb", "-D", f"{folder}/data", "-U", "owner", "-A", "trust", "--no-sync"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@contextmanager
def started(folder: Path, prefix: list[str], stop: str) -> Iterator[Cluster]:
    port = free_port()
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=200"
    control = [*prefix, f"{binaries()}/pg_ctl", "-D", f"{folder}/data", "-w", "-l", f"{folder}/log"]
    subprocess.run([*control, "-o", options, "start"], cwd=folder, check=True, capture_output=True)
    try:
        yield Cluster(port=port)
    finally:
        subprocess.run([*control, "-m", stop, "stop"], cwd=folder, check=False, capture_output=True)


def ready() -> Path | None:
    """The files of a cluster with a database TABLES, to be copied: to make both takes 3 s of CPU. None outside the
    tests: they are kept where all processes that test find them (forking)."""
    if forking.VARIABLE not in os.environ:
        return None
    kept = Path(forking.python()).parent / "postgresql"
    with FileLock(f"{kept}.lock"):
        if not kept.exists():
            with folder_of_cluster() as (folder, prefix):
                initialise(folder, prefix)
                with started(folder, prefix, "fast") as made:  # in which nothing is left to be done at the next start
                    make_tables(made)
                subprocess.run(["cp", "-a", f"{folder}/data", f"{kept}.draft"], check=True)
            Path(f"{kept}.draft").replace(kept)
    return kept


def make_tables(made: Cluster) -> None:
    """MLflow's, in a database that no test opens."""
    from mlflow.store.db.utils import _initialize_tables

    made.run(f"CREATE DATABASE {TABLES}")
    engine = sa.create_engine(made.uri(TABLES), poolclass=sa.pool.NullPool)
    _initialize_tables(engine)
    engine.dispose()


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """The URI of a new database, `sqlite` or `postgresql`; skips the test where PostgreSQL is not installed."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/mlflow.db"
        return
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with cluster() as postgres:
        yield postgres.create("mlflow")
