"""kill -9 at every point of a promotion: afterwards alias and ledger agree, whatever the database."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forking
import pytest
from cluster import binaries, cluster
from guard_doors import request as ask
from guard_modes import engine_of, make
from servers import Server
from workplace import ROOT

from canary_mlflow.ledger.chain import damages
from canary_mlflow.ledger.keys import key_folder, load_public, public_files
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.acts import override
from canary_mlflow.registry.audit import against_store
from canary_mlflow.registry.door import guard_of
from canary_mlflow.registry.fault_points import POINTS, VARIABLE
from canary_mlflow.registry.gatekeeper import gate
from canary_mlflow.registry.reader import reader_of
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
        override(prepare_store(sys.argv[1]), f"to-{point}", "2", "to be killed", without_weights=True)
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
        override(client, f"to-{point}", "1", "a start", without_weights=True)
    command = [forking.python(), "-c", SCRIPT, uri, VARIABLE, *POINTS]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=250)
    killed = -int(signal.SIGKILL)
    assert [line.split() for line in done.stdout.splitlines()] == [[point, str(killed)] for point in POINTS], (
        done.stderr
    )
    assert agreed(client) == []
    for point in POINTS:
        holder = str(client.get_registered_model(f"to-{point}").aliases["champion"])
        assert holder == ("2" if point == "committed" else "1")
    assert override(client, "to-locked", "2", "nothing holds the lock", without_weights=True).version == "2"


def test_a_killed_server_leaves_alias_and_ledger_agreed(
    uri: str, recorder: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """kill -9 of `mlflow server` while it judges and promotes; started again, it finishes what was asked."""
    whole = bool(request.config.getoption("--full"))
    if uri.startswith("sqlite") and binaries() is not None and not whole:
        pytest.skip("killed on PostgreSQL every day, on SQLite with --full")
    make(uri)
    client = prepare_store(uri)
    experiment = client.create_experiment("served", artifact_location=str(tmp_path / "mlruns"))
    for point in POINTS if whole else ("moved",):
        served = recorder(client=client, uri=uri, experiment=experiment, model=f"served-{point}")
        gate(client, served.model, served.version(), load_policy("smoke"))
        body = {"model": served.model, "version": served.version()}
        server = Server(uri, tmp_path, registry=f"canary+{uri}", app="canary", environment={VARIABLE: point})
        with server, pytest.raises(OSError):  # nobody is there to answer any more
            ask(f"{server.uri}/api/2.0/canary/verdicts", "POST", body)
        assert served.champion() == ("2" if point == "committed" else "1")
        assert agreed(client) == []
    server.environment.clear()
    with server:
        answer = ask(f"{server.uri}/api/2.0/canary/ledger?model={served.model}", "GET")
        assert [row["word"] for row in answer["rows"] if row["kind"] not in ("seal", "session")][-1] == (
            "PASS" if point == "committed" else "bootstrap"
        )
        if point != "committed":
            assert ask(f"{server.uri}/api/2.0/canary/verdicts", "POST", body)["decision"]["promoted"]
    engine_of(uri).dispose()


def agreed(client: Any) -> list[str]:
    """What `canary audit verify` names."""
    guard: Any = guard_of(client)
    rows = guard.ledger()
    keys = load_public(public_files(key_folder()))
    return [str(one) for one in (*damages(rows, keys), *against_store(reader_of(client.tracking_uri), rows))]
