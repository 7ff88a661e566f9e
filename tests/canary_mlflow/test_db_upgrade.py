"""canary db upgrade and uninstall: MLflow's migrations on a guarded database, on SQLite and PostgreSQL."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forking
import mlflow.db
import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from cluster import binaries, cluster
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.db import utils
from workplace import ROOT

from canary_mlflow.cli import canary
from canary_mlflow.ledger.install import install
from canary_mlflow.registry.acts.rollback import adopt
from canary_mlflow.tracking.stores.store import prepare_store

# Guarded table → a column of it that a revision makes wider: on SQLite that rebuilds the table, on PostgreSQL it is
# refused while a trigger names the column.
WIDER = {
    "registered_models": "name",
    "registered_model_aliases": "alias",
    "model_versions": "source",
    "model_version_tags": "key",
}
REVISION = """
revision = "next_of_mlflow"
down_revision = "{head}"
branch_labels = depends_on = None
import sqlalchemy as sa
from alembic import op

def upgrade():
    op.create_table("new_of_mlflow", sa.Column("id", sa.Integer, primary_key=True))
    with op.batch_alter_table("{table}") as batch:
        batch.alter_column("{column}", type_=sa.String(600), existing_nullable=False)
    {more}
"""
MOVE = "UPDATE registered_model_aliases SET version = 2 WHERE name = 'm'"


def run(uri: str, *words: str) -> Result:
    return CliRunner().invoke(canary, [*words, "--tracking-uri", uri])


@dataclass
class Guarded:
    """A database of which each test gets a copy: a model with two versions, whose champion was adopted. `fresh` makes
    a copy and returns its URI."""

    fresh: Callable[[], str]

    def schema(self, uri: str) -> Any:
        """Tables with their columns, triggers and views, and all that is in the tables."""
        engine = sa.create_engine(uri)
        kinds = (
            "SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2"
            if engine.dialect.name == "sqlite"
            else "SELECT tgname, tgenabled::text, tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal "
            "UNION ALL SELECT table_name, column_name, character_maximum_length::text FROM information_schema.columns "
            "WHERE table_schema = 'public' ORDER BY 1, 2, 3"
        )
        with engine.connect() as connection:
            found = [tuple(row) for row in connection.execute(sa.text(kinds))]
            rows = {
                name: [tuple(row) for row in connection.execute(sa.text(f"SELECT * FROM {name}"))]
                for name in (*WIDER, "canary_ledger", "alembic_version")
            }
        engine.dispose()
        return found, rows


def fill(uri: str) -> None:
    client = prepare_store(uri)
    client.create_registered_model("m")
    for _ in range(2):
        client.create_model_version("m", "/nowhere")
    client.set_registered_model_alias("m", "champion", "1")
    adopt(client, "m", "a start")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("upgraded")
    if request.param == "sqlite":
        fill(f"sqlite:///{folder}/mlflow.db")

        def copied() -> str:
            number = len(list(folder.glob("*.db")))
            shutil.copy(folder / "mlflow.db", folder / f"{number}.db")
            return f"sqlite:///{folder}/{number}.db"

        yield Guarded(copied)
        return
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with cluster() as postgres:
        fill(postgres.create("whole"))
        numbers = iter(range(100))

        def made() -> str:
            name = f"copy_{next(numbers)}"
            postgres.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'whole'",
                f"CREATE DATABASE {name} TEMPLATE whole",
            )
            return str(postgres.uri(name))

        yield Guarded(made)


@pytest.fixture
def revise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Gives this MLflow one more revision, about a table."""
    folder, configured = tmp_path / "revisions", utils._get_alembic_config
    folder.mkdir()

    def with_ours(*words: Any, **more: Any) -> Any:
        config = configured(*words, **more)
        root = config.get_main_option("script_location")
        config.set_main_option("version_locations", f"{root}/versions{os.pathsep}{folder}")
        config.set_main_option("path_separator", "os")
        return config

    def revised(table: str, more: str = "pass") -> None:
        text = REVISION.format(head=head, table=table, column=WIDER[table], more=more)
        (folder / "next.py").write_text(text)

    head = utils._get_latest_schema_revision()
    monkeypatch.setattr(utils, "_get_alembic_config", with_ours)
    return revised


@pytest.mark.parametrize("table", WIDER)
def test_a_later_schema_is_reached_with_the_guard_in_place(guarded: Guarded, revise: Any, table: str) -> None:
    uri = guarded.fresh()
    revise(table)
    done = run(uri, "db", "upgrade")
    assert done.exit_code == 0, done.output
    assert "→ next_of_mlflow" in done.output
    assert "triggers   in place" in done.output
    engine = sa.create_engine(uri)
    with pytest.raises(sa.exc.DBAPIError, match="canary guard: the ledger does not name"), engine.begin() as connection:
        connection.execute(sa.text(MOVE))
    assert sa.inspect(engine).has_table("new_of_mlflow")
    assert not [name for name in sa.inspect(engine).get_table_names() if name.startswith("_alembic_tmp")]
    wider = {one["name"]: one["type"] for one in sa.inspect(engine).get_columns(table)}
    assert wider[WIDER[table]].length == 600
    engine.dispose()


def test_migrations_that_fail_leave_everything_as_it_was(guarded: Guarded, revise: Any) -> None:
    uri, table = guarded.fresh(), "model_versions"
    before = guarded.schema(uri)
    revise(table, "raise RuntimeError('no space')")
    failed = run(uri, "db", "upgrade")
    assert (failed.exit_code, failed.output.count("\n")) == (4, 1), failed.output
    assert "RuntimeError: no space; expected migrations that end; nothing was changed" in failed.output
    assert guarded.schema(uri) == before
    revise(table, """op.execute("UPDATE registered_model_aliases SET version = 2")""")
    moved = run(uri, "db", "upgrade")
    assert (moved.exit_code, "changed aliases, versions or the ledger" in moved.output) == (4, True)
    assert guarded.schema(uri) == before


def test_mlflows_own_upgrade_ends_in_a_sentence(guarded: Guarded, revise: Any) -> None:
    uri = guarded.fresh()
    before = guarded.schema(uri)
    revise("model_versions")
    done = CliRunner().invoke(mlflow.db.commands, ["upgrade", uri])
    assert (done.exit_code, done.output.count("\n")) == (1, 1), done.output
    assert "stop everything that uses it, then run: canary db upgrade" in done.output
    assert guarded.schema(uri) == before
    opened = run(uri, "gate", "m", "1")
    assert (opened.exit_code, opened.output.count("\n")) == (4, 1), opened.output
    assert "run: canary db upgrade" in opened.output


@pytest.mark.parametrize("table", WIDER)
def test_without_this_package_mlflows_own_upgrade_leaves_no_half_made_table(
    guarded: Guarded, revise: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite a view with the name of Alembic's copy is in its way; PostgreSQL takes everything back."""
    monkeypatch.setattr(utils, "_upgrade_db", utils._upgrade_db.__wrapped__)
    uri = guarded.fresh()
    before = guarded.schema(uri)
    revise(table)
    done = CliRunner().invoke(mlflow.db.commands, ["upgrade", uri])
    after = guarded.schema(uri)
    if uri.startswith("postgresql") and table in ("registered_model_aliases", "model_version_tags"):
        assert done.exit_code == 0  # no trigger there names a column
        assert "triggers   in place" in run(uri, "db", "status").output
        return
    assert done.exit_code == 1
    wanted = f"view _alembic_tmp_{table} already exists" if uri.startswith("sqlite") else "used in a trigger definition"
    assert wanted in str(done.exception)
    assert after[1] == before[1]
    assert [row for row in after[0] if "new_of_mlflow" not in str(row)] == before[0]


def test_the_guard_can_be_taken_away_and_the_ledger_says_so(guarded: Guarded) -> None:
    uri = guarded.fresh()
    done = run(uri, "db", "uninstall", "--reason", "moving house")
    assert done.exit_code == 0, done.output
    assert "The triggers are gone; row 2 of the ledger says so." in done.output
    assert run(uri, "db", "status").output.count("missing: ") == 1
    stock = MlflowClient(uri, registry_uri=uri)
    stock.set_registered_model_alias("m", "champion", "2")
    stock.set_registered_model_alias("m", "champion", "1")
    engine = sa.create_engine(uri)
    with engine.connect() as connection:
        left = list(connection.execute(sa.text("SELECT kind, word, model FROM canary_ledger ORDER BY seq")))
    assert [tuple(row) for row in left] == [("adopt", "adopted", "m"), ("uninstall", "uninstalled", "")]
    engine.dispose()
    verified = run(uri, "audit", "verify")
    assert (verified.exit_code, verified.output.count("there is no trigger of the guard")) == (1, 1), verified.output
    assert "triggers   in place" in run(uri, "db", "install").output
    assert run(uri, "audit", "verify").exit_code == 0
    again = run(f"sqlite:///{Path(os.devnull)}", "db", "uninstall", "--reason", "x")
    assert (again.exit_code, again.output.count("\n")) == (4, 1)


def older(uri: str, revision: str) -> None:
    """The tables as MLflow's own migrations made them up to a revision of an earlier release."""
    from alembic import command
    from mlflow.store.tracking.dbmodels.initial_models import Base

    engine = sa.create_engine(uri)
    Base.metadata.create_all(engine)
    config = utils._get_alembic_config(uri)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


VERSION = (
    "INSERT INTO registered_models (name, creation_time) VALUES ('m', 1)",
    "INSERT INTO model_versions (name, version, creation_time, source, current_stage) VALUES ('m', 1, 2, '/x', 'None')",
    "INSERT INTO registered_model_aliases (name, alias, version) VALUES ('m', 'champion', 1)",
)


@pytest.mark.parametrize(
    ("revision", "with_guard"), [pytest.param("c8d9e0f1a2b3", False, marks=pytest.mark.full), ("7d34483879f0", True)]
)
def test_a_database_of_an_older_mlflow(tmp_path: Path, revision: str, with_guard: bool) -> None:
    """Before MLflow had workspaces, where no ledger can be yet; and one from between then and now, with a guard."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    older(uri, revision)
    engine = sa.create_engine(uri)
    with engine.begin() as connection:
        for statement in VERSION:
            connection.execute(sa.text(statement))
    if with_guard:
        install(engine)
        too_old = run(uri, "gate", "m", "1")  # MLflow would migrate the tables as it opens them
        assert (too_old.exit_code, too_old.output.count("\n")) == (4, 1), too_old.output
        assert f"run: canary db upgrade --tracking-uri {uri}" in too_old.output
        own = subprocess.run([forking.python(), "-m", "mlflow", "db", "upgrade", uri], capture_output=True, text=True)
        assert own.returncode == 1
        assert own.stderr.splitlines()[-1].startswith("Error: canary guard: an older MLflow made the tables"), (
            own.stderr
        )
    done = run(uri, "db", "upgrade")
    assert done.exit_code == 0, done.output
    assert ("triggers   in place" in done.output, "no ledger" in done.output) == (with_guard, not with_guard)
    assert run(uri, "adopt", "m", "--reason", "from before").exit_code == 0
    assert run(uri, "audit", "verify").exit_code == 0
    assert "nothing to migrate" in run(uri, "db", "upgrade").output
    engine.dispose()


def restored(file: Path, release: str) -> str:
    """A database that a release of MLflow has really made; the URI."""
    with closing(sqlite3.connect(file)) as database:
        database.executescript((ROOT / "tests" / "data" / f"mlflow-{release}.sql").read_text())
    return f"sqlite:///{file}"


def kept(uri: str) -> tuple[Any, ...]:
    """What a person would miss in such a database."""
    engine = sa.create_engine(uri)
    with engine.connect() as connection:
        asked = (
            "SELECT alias, version FROM registered_model_aliases ORDER BY 1",
            "SELECT version, source, creation_time FROM model_versions ORDER BY 1",
            "SELECT step, value FROM metrics ORDER BY 1",
            "SELECT key, value FROM model_version_tags WHERE key NOT LIKE 'canary.%' ORDER BY 1",
        )
        found = tuple(tuple(tuple(row) for row in connection.execute(sa.text(query))) for query in asked)
    engine.dispose()
    return found


@pytest.mark.parametrize("broken", [False, True])
def test_a_database_that_mlflow_2_22_made(tmp_path: Path, broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`broken`: with triggers that an earlier version of this package put on tables without workspaces."""
    uri = restored(tmp_path / "mlflow.db", "2.22.5")
    before = kept(uri)
    assert [alias for alias, _ in before[0]] == ["champion", "shadow"]
    if broken:
        with monkeypatch.context() as patched:
            patched.setattr("canary_mlflow.ledger.install.without_workspaces", lambda _connection: "")
            install(sa.create_engine(uri))
    else:
        too_early = run(uri, "db", "install")
        assert (too_early.exit_code, too_early.output.count("\n")) == (4, 1), too_early.output
        assert "an older MLflow made its tables (registered_models has no column workspace)" in too_early.output
        assert "run canary db upgrade first; nothing was changed" in too_early.output
        assert "no ledger there" in run(uri, "db", "status").output
    done = run(uri, "db", "upgrade")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("schema 0584bdc529eb → ")
    taken_over(uri)
    assert kept(uri) == before


@pytest.mark.full  # daily: with 2.22
def test_a_database_that_mlflow_3_10_made(tmp_path: Path) -> None:
    uri = restored(tmp_path / "mlflow.db", "3.10.1")
    before = kept(uri)
    assert "triggers   in place" in run(uri, "db", "install").output
    assert run(uri, "db", "upgrade").output.startswith("schema 1b5f0d9ad7c1 → ")
    taken_over(uri)
    assert kept(uri) == before


def taken_over(uri: str) -> None:
    """The champion of before is in the ledger, and nobody moves it."""
    assert run(uri, "db", "install").exit_code == 0
    adopted = run(uri, "adopt", "prod", "--reason", "from before")
    assert adopted.exit_code == 0, adopted.output
    assert run(uri, "audit", "verify").exit_code == 0
    with pytest.raises(MlflowException, match="the ledger does not name this version"):
        MlflowClient(uri, registry_uri=uri).set_registered_model_alias("prod", "champion", "2")


def test_what_is_no_database_of_mlflow_is_not_upgraded(tmp_path: Path) -> None:
    refused = run(f"sqlite:///{tmp_path}/empty.db", "db", "upgrade")
    assert (refused.exit_code, "no tables of MLflow there" in refused.output) == (4, True)


@pytest.mark.parametrize("words", [("session", "start", "m"), ("doctor",), ("compare", "m/1", "m/2")])
def test_an_older_database_is_never_migrated_in_silence(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Another client's MLflow of 2.22 was locked out by the first command of ours."""
    uri = restored(tmp_path / "mlflow.db", "2.22.5")
    before = (tmp_path / "mlflow.db").read_bytes()
    refused = run(uri, *words)
    assert (tmp_path / "mlflow.db").read_bytes() == before
    if words != ("doctor",):
        assert refused.exit_code == 4, refused.output
    assert "another MLflow made it (schema 0584bdc529eb); expected schema " in refused.output
    assert f"back it up, and run: canary db upgrade --tracking-uri {uri}" in refused.output
