"""Lookups by session go by an index, and a ledger from before there was one gets it with `canary db upgrade`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from cluster import database

from canary_mlflow.cli import canary
from canary_mlflow.ledger import table
from canary_mlflow.ledger.chain import Kind, Record, Row, signed
from canary_mlflow.ledger.install import missing_indexes
from canary_mlflow.ledger.keys import key_folder, load_signer
from canary_mlflow.registry.plugin import guarded_store
from canary_mlflow.tracking.stores.store import prepare_store

ROWS = 2_000  # enough for PostgreSQL to prefer an index
NEW = ("canary_ledger_of_kind", "canary_ledger_of_session")
LOOKUPS: dict[str, Callable[[Any], list[Row]]] = {
    "canary_ledger_of_session": lambda connection: read(connection, kind="session", alias=f"{40:032x}"),
    "canary_ledger_of_kind": lambda connection: read(connection, "default", kind="session", after=ROWS - 40),
}


def read(connection: Any, workspace: str | None = None, **about: Any) -> list[Row]:
    return list(table.read(connection, workspace=workspace, **about))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def uri(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A ledger as it was made before the indexes: one row in twenty is a session's, the others are verdicts."""
    with database(request.param, tmp_path_factory.mktemp("indexes")) as uri:
        yield filled(uri)


def filled(uri: str) -> str:
    prepare_store(uri)
    guarded_store(uri, "")
    engine, signer, last = sa.create_engine(uri), load_signer(key_folder()), None
    with engine.begin() as connection:
        assert missing_indexes(connection) == []  # they are made with the table
        for number in range(ROWS):
            last = signed(record(number), last, signer)
            table.append(connection, last)
        for name in NEW:
            connection.execute(sa.text(f"DROP INDEX {name}"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("ANALYZE"))
    engine.dispose()
    return uri


def record(number: int) -> Record:
    session = number % 20 == 0
    return Record(
        kind=Kind.SESSION if session else Kind.VERDICT, model="m", version=0 if session else number, version_created=0,
        alias=f"{number:032x}" if session else "champion", word="ended" if session else "BLOCK", grants=False,
        moves=False, facts={"runs": {}, "actor": "ann", "time": "2026-11-21T10:00:00.000+00:00"},
    )  # fmt: skip


def plan(uri: str, lookup: Callable[[Any], list[Row]]) -> tuple[int, str]:
    """How many rows a lookup finds, and what the database says of how it looks for them."""
    asked: list[tuple[str, Any]] = []
    engine = sa.create_engine(uri)
    with engine.connect() as connection:

        @sa.event.listens_for(engine, "before_cursor_execute")
        def heard(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
            asked.append((statement, parameters))

        found = len(lookup(connection))
        explain = "EXPLAIN QUERY PLAN" if uri.startswith("sqlite") else "EXPLAIN"
        said = connection.exec_driver_sql(f"{explain} {asked[0][0]}", asked[0][1])
        text = "\n".join(str(row) for row in said)
    engine.dispose()
    return found, text


def run(uri: str, *words: str) -> str:
    done = CliRunner().invoke(canary, [*words, "--tracking-uri", uri])
    assert done.exit_code == 0, done.output
    return done.output


def test_an_older_ledger_gets_the_indexes_and_still_verifies(uri: str) -> None:
    assert f"indexes    missing: {', '.join(NEW)}; canary db upgrade adds them" in run(uri, "db", "status")
    run(uri, "audit", "verify")
    before = {name: plan(uri, lookup) for name, lookup in LOOKUPS.items()}
    assert "nothing to migrate" in run(uri, "db", "upgrade")
    assert "missing" not in run(uri, "db", "status")
    run(uri, "audit", "verify")
    for name, lookup in LOOKUPS.items():
        found, how = plan(uri, lookup)
        assert found == before[name][0] > 0
        assert (name in how, name in before[name][1]) == (True, False), how


def test_a_run_is_looked_for_in_the_rows_of_sessions_alone(uri: str) -> None:
    run(uri, "db", "upgrade")
    found, how = plan(uri, lambda connection: read(connection, kind="session", naming=f"{40:032x}"))
    assert found == 1, how
    assert any(name in how for name in NEW), how
