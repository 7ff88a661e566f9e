"""kill -9 at every point of a promotion: afterwards alias and ledger agree, whatever the database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import binaries, cluster
from workplace import ROOT

from canary_mlflow.ledger.chain import damages
from canary_mlflow.ledger.keys import key_folder, load_public, public_files
from canary_mlflow.registry.acts import override
from canary_mlflow.registry.audit import against_store
from canary_mlflow.registry.door import guard_of
from canary_mlflow.registry.fault_points import POINTS, VARIABLE
from canary_mlflow.tracking.store import prepare_store

SCRIPT = """
import os, sys
from canary_mlflow.registry.acts import override
from canary_mlflow.tracking.store import prepare_store
client = prepare_store(sys.argv[1])
for point in sys.argv[3:]:
    if os.fork() == 0:
        from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore
        from canary_mlflow.registry.plugin import guarded_store
        SqlAlchemyStore._engine_map.clear()  # connections are not for two processes
        guarded_store.cache_clear()
        os.environ[sys.argv[2]] = point
        override(prepare_store(sys.argv[1]), f"to-{point}", "2", "to be killed")
        os._exit(0)
    print(point, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def uri(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('killed')}/mlflow.db"
        return
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with cluster() as postgres:
        postgres.run("CREATE DATABASE mlflow")
        yield postgres.uri("mlflow")


def test_a_killed_promotion_leaves_alias_and_ledger_agreed(uri: str, tmp_path: Path) -> None:
    client = prepare_store(uri)
    for point in POINTS:
        client.create_registered_model(f"to-{point}")
        for _ in range(2):
            client.create_model_version(f"to-{point}", str(tmp_path))
        override(client, f"to-{point}", "1", "a start")
    command = [sys.executable, "-c", SCRIPT, uri, VARIABLE, *POINTS]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=250)
    killed = -int(signal.SIGKILL)
    assert [line.split() for line in done.stdout.splitlines()] == [[point, str(killed)] for point in POINTS], (
        done.stderr
    )
    guard: Any = guard_of(client)
    rows = guard.ledger()
    keys = load_public(public_files(key_folder()))
    assert [str(one) for one in (*damages(rows, keys), *against_store(guard, rows))] == []
    for point in POINTS:
        holder = str(client.get_registered_model(f"to-{point}").aliases["champion"])
        assert holder == ("2" if point == "committed" else "1")
    assert override(client, "to-locked", "2", "nothing holds the lock").version == "2"
