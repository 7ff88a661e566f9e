"""kill -9 and a full disk at every write of a promotion: afterwards alias and ledger agree, whatever the database."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import database
from guard_doors import request as ask
from guard_modes import engine_of
from servers import Server
from system_calls import FULL, KILL, SENDS, WRITES, Forks, attached, forks, nth_row

from canary_mlflow.ledger.chain import damages
from canary_mlflow.ledger.keys import key_folder, load_public, public_files
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.acts.by_hand import override
from canary_mlflow.registry.audit import against_store
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.reader import reader_of
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.tracking.stores.store import prepare_store

COMMAND = """
import sys
from canary_mlflow.cli import main

def act(words):
    sys.argv = ["canary", *words]
    try:
        main()
    except SystemExit as ended:
        return ended.code
"""


@dataclass(frozen=True, kw_only=True)
class Killed:
    """A store, and processes that move `model`'s champion in it."""

    uri: str
    client: Any
    forks: Forks
    calls: tuple[str, ...]
    whole: bool  # at every call, as with --full

    def champion(self) -> str:
        return str(self.client.get_registered_model("m").aliases["champion"])

    def other(self) -> str:
        """The version that is not champion."""
        return "1" if self.champion() == "2" else "2"

    def command(self) -> list[str]:
        """Moves it to the other version."""
        asked = ["override", "m", self.other(), "--reason", "to be cut short", "--without-weights"]
        return [*asked, "--tracking-uri", self.uri]

    def cut(self, way: str, places: Mapping[str, int]) -> set[tuple[bool, str]]:
        """Move the champion once for every call of `places`, cut short at it; whether it moved, and how it ended."""
        seen = set()
        for call, times in places.items():
            for nth in range(1, times + 1) if self.whole else some(times):
                before = self.champion()
                rows = len(registry_of(self.client).rows(everywhere=True))
                inject = f"{call}:{way}:when={nth}"
                code = self.forks.run(inject, self.calls, words=self.command())
                moved = self.champion() != before
                assert len(registry_of(self.client).rows(everywhere=True)) == rows + moved, inject
                assert agreed(self.client) == [], inject
                seen.add((moved, "killed" if code == -signal.SIGKILL else f"exit {code}"))
        return seen


def some(times: int) -> list[int]:
    """A few of them; with --full it is each."""
    apart = max(1, times // 2)
    return list(range(times, 0, -apart))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def uri(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with database(request.param, tmp_path_factory.mktemp("killed")) as uri:
        yield uri


@pytest.fixture(scope="module")
def killed(uri: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Killed]:
    folder = tmp_path_factory.mktemp("forks")
    client = prepare_store(uri)
    (folder / "weights").mkdir()
    client.create_registered_model("m")
    for _ in range(2):
        client.create_model_version("m", str(folder / "weights"))
    override(client, "m", "1", "a start", without_weights=True)
    with forks(COMMAND, folder) as started:
        calls = WRITES if uri.startswith("sqlite") else SENDS
        whole = bool(request.config.getoption("--full"))
        yield Killed(uri=uri, client=client, forks=started, calls=calls, whole=whole)


def test_a_promotion_killed_at_any_write_leaves_alias_and_ledger_agreed(killed: Killed) -> None:
    places = killed.forks.counted(killed.calls, words=killed.command())
    seen = killed.cut(KILL, places)
    assert (False, "killed") in seen
    assert seen <= {(False, "killed"), (True, "killed"), (True, "exit 0")}, seen  # 0: it made fewer calls this time
    assert killed.forks.run(words=killed.command()) == 0  # nothing holds the lock


def test_a_promotion_whose_disk_fills_at_any_write_says_so(killed: Killed) -> None:
    if killed.calls != WRITES:
        pytest.skip("PostgreSQL's disk is its server's: tests/canary_mlflow/test_tracking_store.py")
    places = killed.forks.counted(("pwrite64",), words=killed.command())
    seen = killed.cut(FULL, places)
    assert (False, "exit 4") in seen
    assert seen <= {(False, "exit 4"), (True, "exit 0")}, seen  # 0: it made fewer calls this time


@pytest.mark.full
def test_a_killed_server_leaves_alias_and_ledger_agreed(uri: str, recorder: Any, tmp_path: Path) -> None:
    """kill -9 of `mlflow server` in the transaction of a promotion; started again, it does what was asked."""
    client = prepare_store(uri)
    experiment = client.create_experiment("served", artifact_location=str(tmp_path / "mlruns"))
    served = recorder(client=client, uri=uri, experiment=experiment, model="served")
    gate(client, served.model, served.version(), load_policy("smoke"))
    server = Server(uri, tmp_path, registry=f"canary+{uri}", app="canary", python=sys.executable)
    calls = tmp_path / "calls.txt"

    def promote(version: str) -> bool:
        body = {"model": served.model, "version": version}
        return bool(ask(f"{server.uri}/api/2.0/canary/verdicts", "POST", body)["decision"]["promoted"])

    journal = Path(f"{uri.removeprefix('sqlite:///')}-journal") if uri.startswith("sqlite") else None
    commit = f"unlink:{KILL}:when=1"
    with server:
        if journal is None:
            with attached(server.pid, calls, SENDS):
                assert promote(served.version())
            commit = f"sendto:{KILL}:when={nth_row(calls)}"
            server.kill()
            server.start()  # so that both are its first: psycopg prepares a statement at the fifth, with a call more
        else:
            assert promote(served.version())  # what a server asks its database once is asked
        before, last = served.champion(), served.version()
        with (
            attached(server.pid, calls, (commit.split(":")[0],), commit, journal),
            pytest.raises(OSError),  # nobody is there to answer any more
        ):
            promote(last)
        server.wait()
    assert served.champion() == before
    assert agreed(client) == []
    with server:
        assert promote(last)  # nothing holds the lock
    assert served.champion() == last
    engine_of(uri).dispose()


def agreed(client: Any) -> list[str]:
    """What `canary audit verify` names."""
    guard: Any = registry_of(client)
    rows = guard.rows(everywhere=True)
    keys = load_public(public_files(key_folder()))
    return [str(one) for one in (*damages(rows, keys), *against_store(reader_of(client.tracking_uri), rows))]
