"""Many promoters at once, each a process: one wins, the ledger agrees, and nothing is lost or stuck."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import forking
import pytest
import sqlalchemy as sa
from cluster import binaries, cluster, database
from ledger_rows import note
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from workplace import ROOT

from canary_mlflow.errors import CanaryError
from canary_mlflow.ledger import triggers
from canary_mlflow.ledger.chain import damages
from canary_mlflow.ledger.install import install
from canary_mlflow.ledger.keys import key_folder, load_public, public_files
from canary_mlflow.registry.acts.by_hand import override
from canary_mlflow.registry.acts.rollback import rollback
from canary_mlflow.registry.audit import against_store
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.reader import reader_of
from canary_mlflow.registry.guard.store import GuardedStore
from canary_mlflow.tracking.stores.store import prepare_store

EVERY_DAY, FULL = (16, 2), (64, 20)  # promoters, rounds


@pytest.mark.timeout(1500)
def test_of_promoters_at_once_one_wins_each_round(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    promoters, rounds = FULL if request.config.getoption("--full") else EVERY_DAY
    sqlite = f"sqlite:///{tmp_path}/mlflow.db"
    if binaries() is None:
        races(promoters, rounds, sqlite)
        pytest.skip("PostgreSQL is not installed, SQLite alone was raced: apt-get install postgresql")
    with cluster() as postgres:
        races(promoters, rounds, sqlite, postgres.create("mlflow"))


@pytest.fixture(params=["sqlite", "postgresql"])
def raced(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, MlflowClient]]:
    """A store, and a model with nine versions, the third of which is champion."""
    with database(request.param, tmp_path) as uri:
        client = prepare_store(uri)
        client.create_registered_model("m")
        (tmp_path / "weights").mkdir()
        for _ in range(9):
            client.create_model_version("m", str(tmp_path / "weights"))
        for version in "123":
            override(client, "m", version, "a start", without_weights=True)
        yield uri, client
        guard: Any = registry_of(client)
        guard.store.engine.dispose()


def test_rollback_override_and_delete_at_once_leave_alias_and_ledger_agreed(raced: tuple[str, MlflowClient]) -> None:
    """Six threads, so that every act meets every other; who loses is told so in one line."""
    uri, client = raced
    acts = [
        *(partial(override, client, "m", one, "raced", without_weights=True) for one in "456789"),
        *(partial(client.delete_model_version, "m", one) for one in "123456789"),
        *[partial(rollback, client, "m", "raced")] * 6,
    ]
    random.Random(1).shuffle(acts)
    with ThreadPoolExecutor(6) as pool:
        said = list(pool.map(outcome, acts))
    assert "done" in said
    assert not [one for one in said if one.startswith("5")], said
    holder = str(client.get_registered_model("m").aliases["champion"])
    assert str(client.get_model_version("m", holder).version) == holder
    assert damaged(uri, client) == []


def test_a_version_that_is_being_deleted_does_not_become_champion(raced: tuple[str, MlflowClient]) -> None:
    """Whoever deletes has not committed when somebody else makes the version champion."""
    uri, client = raced
    engine = sa.create_engine(uri)
    with ThreadPoolExecutor(1) as pool, engine.begin() as deletion:
        deletion.execute(sa.text("UPDATE model_versions SET current_stage = 'Deleted_Internal' WHERE version = 5"))
        meanwhile = pool.submit(outcome, partial(override, client, "m", "5", "raced", without_weights=True))
        wait([meanwhile], timeout=2)
        assert not meanwhile.done()
        deletion.commit()
        assert meanwhile.result().startswith("404"), meanwhile.result()
    engine.dispose()
    assert str(client.get_registered_model("m").aliases["champion"]) == "3"
    assert damaged(uri, client) == []


def test_a_champion_that_was_deleted_is_named(raced: tuple[str, MlflowClient]) -> None:
    uri, client = raced
    engine = sa.create_engine(uri)
    with engine.begin() as owner:
        for statement in triggers.drop(engine.dialect.name):
            owner.execute(sa.text(statement))
        owner.execute(sa.text("UPDATE model_versions SET current_stage = 'Deleted_Internal' WHERE version = 3"))
    install(engine)
    engine.dispose()
    assert damaged(uri, client) == ["champion of 'm' is version 3, which was deleted"]


def test_a_first_row_comes_in_time_however_late_it_is(
    raced: tuple[str, MlflowClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another connection guards the model when MLflow has begun to set its alias."""
    uri, client = raced
    client.create_registered_model("theirs")
    client.create_model_version("theirs", "/nowhere")
    client.set_registered_model_alias("theirs", "champion", "1")
    client.create_model_version("theirs", "/nowhere")
    read = GuardedStore._get_sql_model_version

    def slowly(*words: Any) -> Any:
        found = read(*words)
        note(uri, "theirs")
        return found

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(GuardedStore, "_get_sql_model_version", slowly)
        said = outcome(partial(client.set_registered_model_alias, "theirs", "champion", "2"))
    assert said.startswith("403 canary guard: alias 'champion' of 'theirs', version 2: there is no verdict"), said
    assert str(client.get_registered_model("theirs").aliases["champion"]) == "1"


def damaged(uri: str, client: MlflowClient) -> list[str]:
    """What `canary audit verify` names."""
    guard: Any = registry_of(client)
    rows = guard.rows(everywhere=True)
    keys = load_public(public_files(key_folder()))
    return [str(one) for one in (*damages(rows, keys), *against_store(reader_of(uri), rows))]


def outcome(act: Callable[[], Any]) -> str:
    """`done`, or the status and the sentence of a refusal."""
    try:
        act()
    except MlflowException as error:
        return f"{error.get_http_status_code()} {error.message}"
    except CanaryError as error:
        return f"4 {error}"
    return "done"


def races(promoters: int, rounds: int, *uris: str) -> None:
    size = ["--promoters", str(promoters), "--rounds", str(rounds)]
    done = subprocess.run(
        [forking.python(), str(ROOT / "tests" / "guard_race.py"), *uris, *size],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, timeout=1400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stdout)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(uris) * (rounds + 1)
    for one in told:
        if "damages" in one:
            assert one["damages"] == []
            continue
        assert one["answers"] == {"200": 1, "409": promoters - 1}, one["strange"]
        assert one["won"] == [one["champion"]] == [one["ledger"]]
        assert one["rows_added"] == 1
