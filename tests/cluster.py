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

import pytest
import sqlalchemy as sa

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


@contextmanager
def cluster(disk: Path | None = None) -> Iterator[Cluster]:
    """Start one whose files lie on `disk`, and stop it. `binaries()` must be there."""
    place = binaries()
    assert place is not None
    folder = Path(tempfile.mkdtemp(prefix="canary-postgres-", dir=disk))
    prefix: list[str] = []
    if os.getuid() == 0:
        account = next(pwd.getpwnam(name) for name in ACCOUNTS if any(one.pw_name == name for one in pwd.getpwall()))
        os.chown(folder, account.pw_uid, account.pw_gid)
        prefix = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    port = free_port()
    command = [*prefix, str(place / "initdb"), "-D", f"{folder}/data", "-U", "owner", "-A", "trust", "--no-sync"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=200"
    control = [*prefix, str(place / "pg_ctl"), "-D", f"{folder}/data", "-w", "-l", f"{folder}/log"]
    subprocess.run([*control, "-o", options, "start"], cwd=folder, check=True, capture_output=True)
    try:
        yield Cluster(port=port)
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], cwd=folder, check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """The address of an empty database, `sqlite` or `postgresql`; skips the test where PostgreSQL is not installed."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/mlflow.db"
        return
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with cluster() as postgres:
        postgres.run("CREATE DATABASE mlflow")
        yield postgres.uri("mlflow")
