"""Runs MLflow's own migrations on a guarded database: without the triggers, which would be in their way, and in one
transaction, which leaves everything as it was if anything fails.

Alembic rebuilds a SQLite table as a copy that takes its name. The table's triggers are lost with it, and triggers
elsewhere that name it end the renaming half-way (https://www.sqlite.org/lang_altertable.html, "rename").
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from mlflow.store.db import utils

from canary_mlflow.errors import StoreError, one_line
from canary_mlflow.ledger import triggers
from canary_mlflow.ledger.install import (
    add_indexes,
    begin,
    current_schema,
    give,
    installed,
    missing_triggers,
    without_workspaces,
)
from canary_mlflow.ledger.table import LEDGER

VERSION_TABLE = "alembic_version"


def upgrade(engine: sa.Engine, server_role: str = "") -> tuple[str, str]:
    """Bring the tables to this MLflow's schema, guarded or not; return the revisions before and after.

    `server_role`: the role that gets `install`'s grants on new tables. Raises StoreError, with nothing changed.
    """
    shown = engine.url.render_as_string(hide_password=True)
    if not sa.inspect(engine).has_table(VERSION_TABLE):
        raise StoreError(f"{shown}: no tables of MLflow there; expected a database that it has made; name another")
    try:
        with engine.begin() as connection:
            begin(connection)
            before = revision(connection)
            with without_triggers(connection):
                migrate(connection)
            if server_role:
                give(connection, server_role, current_schema(connection))
            return before, revision(connection)
    except StoreError as error:
        raise StoreError(f"{shown}: {error}; nothing was changed") from error
    except Exception as error:  # a migration is foreign code, and may raise anything
        raise StoreError(
            f"{shown}: {type(error).__name__}: {one_line(error)}; expected migrations that end; nothing was changed"
        ) from error


def revision(connection: Any) -> str:
    """The schema's revision, as Alembic names it."""
    return ", ".join(connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars())


def migrate(connection: Any) -> None:
    """Do what `mlflow db upgrade` does, but on this connection: MLflow's own env.py opens another."""
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    config = utils._get_alembic_config("")
    script = ScriptDirectory.from_config(config)

    def steps(found: Any, _context: Any) -> Any:
        return script._upgrade_revs("heads", found)

    with EnvironmentContext(config, script, fn=steps, destination_rev="heads") as environment:
        environment.configure(connection=connection, render_as_batch=True)
        environment.run_migrations()


@contextmanager
def without_triggers(connection: Any) -> Iterator[None]:
    """Remove the guard's triggers for the length of a block. Raises StoreError if aliases, versions or the ledger are
    then no longer what they were."""
    if not installed(connection):
        yield
        return
    dialect = connection.dialect.name
    # Triggers were once also put on tables from before workspaces; migrating those must still work.
    place = "" if without_workspaces(connection) else "workspace"
    before = guarded_rows(connection, place)
    for statement in triggers.drop(dialect):
        connection.exec_driver_sql(statement)
    yield
    add_indexes(connection)
    for statement in triggers.create(dialect, current_schema(connection)):
        connection.exec_driver_sql(statement)
    if missing := missing_triggers(connection):
        raise StoreError(f"the triggers {', '.join(missing)} are not as expected after the migrations")
    if guarded_rows(connection, place) != before:
        raise StoreError("the migrations changed aliases, versions or the ledger; expected them to stay")


def guarded_rows(connection: Any, place: str = "workspace") -> list[list[tuple[Any, ...]]]:
    """Who holds which alias, what that version is, and the ledger's digests. `place`: the workspace column, "" if there
    is none."""
    keys = [*filter(None, [place]), "name"]
    held = (
        f"SELECT {', '.join(f'a.{key}' for key in keys)}, a.alias, a.version, v.creation_time, v.source "
        "FROM registered_model_aliases a LEFT JOIN model_versions v "
        f"ON {' AND '.join(f'v.{key} = a.{key}' for key in (*keys, 'version'))} ORDER BY 1, 2, 3"
    )
    rows = sa.select(LEDGER.c.seq, LEDGER.c.digest).order_by(LEDGER.c.seq)
    return [[tuple(row) for row in connection.execute(query)] for query in (sa.text(held), rows)]
