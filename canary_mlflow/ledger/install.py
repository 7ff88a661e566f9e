"""Installs the ledger and its triggers in a database, inspects what is installed, and removes the triggers again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.ledger import table, triggers
from canary_mlflow.ledger.chain import Kind, Record, Row, signed, stamp
from canary_mlflow.ledger.keys import Signer
from canary_mlflow.ledger.table import ADVISORY_LOCK, GUARDED, LEDGER, METADATA, OPERATORS
from canary_mlflow.ledger.writing import let_sign

ALIASES = ("champion", "anchor")
WITH_ROWS = ""  # instead of a pattern: every model that the ledger has a row about
DIALECTS = ("sqlite", "postgresql")
NOT_ADDED_TO = ("canary_guarded", "canary_operators")


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """An alias that is guarded on the models whose names match `models` (* any text, ? one character), or WITH_ROWS."""

    alias: str
    models: str = WITH_ROWS

    @property
    def pattern(self) -> re.Pattern[str]:
        """The same as a regular expression."""
        parts = (".*" if sign == "*" else "." if sign == "?" else re.escape(sign) for sign in self.models)
        return re.compile("".join(parts), re.DOTALL)

    @property
    def like(self) -> str:
        """The same for SQL, with backslash as the escape."""
        spelled = {"*": "%", "?": "_", "%": r"\%", "_": r"\_", "\\": r"\\"}
        return "".join(spelled.get(sign, sign) for sign in self.models)


FROM_FIRST_ROW = tuple(Guarded(alias=alias) for alias in ALIASES)


def parse_guarded(text: str) -> Guarded:
    """`ALIAS`, for models with rows, or `ALIAS=MODELS`. Raises UsageError."""
    alias, _, models = text.partition("=")
    if not re.fullmatch(r"[\w\-]{1,255}", alias, re.ASCII):
        raise UsageError(f"--guard {text[:80]!r}: expected ALIAS or ALIAS=MODELS, such as champion=prod-*")
    return Guarded(alias=alias.lower(), models=models)


def installed(connection: Any) -> bool:
    """Whether the database has the ledger."""
    return bool(sa.inspect(connection).has_table(LEDGER.name))


def missing_triggers(connection: Any) -> list[str]:
    """The triggers that are missing, do not fire in every session, or have other code."""
    dialect = connection.dialect.name
    found = connection.execute(sa.text(triggers.THERE[dialect].replace(":", r"\:")))
    there = {str(name): str(text) for name, text in found}
    return sorted(name for name, text in triggers.sources(dialect).items() if there.get(name) != text)


def without_workspaces(connection: Any) -> str:
    """A guarded table as MLflow made it before it had workspaces, or ""; triggers on such a table stop every move."""
    there = sa.inspect(connection)
    for name in triggers.REBUILT:
        if there.has_table(name) and "workspace" not in {str(one["name"]) for one in there.get_columns(name)}:
            return name
    return ""


def missing_indexes(connection: Any) -> list[str]:
    """The ledger's missing indexes, which were added after it. Everything works without them, but slowly."""
    there = {found["name"] for found in sa.inspect(connection).get_indexes(LEDGER.name)}
    return sorted(str(index.name) for index in LEDGER.indexes if index.name not in there)


def add_indexes(connection: Any) -> None:
    """Make the missing indexes: an existing table does not get those that were added later."""
    for index in LEDGER.indexes:
        index.create(connection, checkfirst=True)


def install(
    engine: sa.Engine,
    guarded: Sequence[Guarded] | None = None,
    operators: Sequence[str] | None = None,
    server_role: str = "",
) -> None:
    """Install tables, triggers, what is guarded and who may override, in one transaction; call it again to change or
    repair them.

    `guarded`: in addition to ALIASES of every model that the ledger has a row about. `guarded` and `operators` None:
    keep them as they are; at first nothing more is guarded, and nobody is named. Raises StoreError.
    """
    dialect = engine.dialect.name
    if dialect not in DIALECTS:
        raise StoreError(f"{dialect}: no triggers for this database; expected one of {', '.join(DIALECTS)}")
    try:
        with engine.begin() as connection:
            begin(connection)
            if older := without_workspaces(connection):
                raise StoreError(
                    f"{engine.url.render_as_string(hide_password=True)}: an older MLflow made its tables ({older} has "
                    "no column workspace); expected those of this one; run canary db upgrade first; nothing was changed"
                )
            new = not installed(connection)
            METADATA.create_all(connection)
            add_indexes(connection)
            schema = current_schema(connection)
            for statement in triggers.drop(dialect):
                connection.execute(sa.text(statement))
            write(connection, () if guarded is None and new else guarded, operators)
            for statement in triggers.create(dialect, schema):
                connection.exec_driver_sql(statement)
            if server_role:
                give(connection, server_role, schema)
    except sa.exc.SQLAlchemyError as error:
        raise StoreError(
            f"ledger: {one_line(error)}; expected a database that MLflow has made and an account that owns its tables; "
            "run `canary db install` as that account"
        ) from error


def begin(connection: Any) -> None:
    """Let one installer in at a time. On SQLite, also begin a transaction for the tables, as its driver begins none."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA busy_timeout = 20000")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        # Before the table, as a promotion does: in the other order, each would wait for the other.
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")
        connection.exec_driver_sql("LOCK TABLE registered_model_aliases IN SHARE ROW EXCLUSIVE MODE")


def current_schema(connection: Any) -> str:
    """The schema that holds the tables; empty on SQLite, which has no schemas."""
    if connection.dialect.name == "sqlite":
        return ""
    return str(connection.exec_driver_sql("SELECT current_schema()").scalar_one())


def write(connection: Any, guarded: Sequence[Guarded] | None, operators: Sequence[str] | None) -> None:
    """Write what is guarded besides FROM_FIRST_ROW, and who may override; None leaves either as it is."""
    if guarded is not None:
        connection.execute(GUARDED.delete())
        for one in dict.fromkeys((*FROM_FIRST_ROW, *guarded)):
            connection.execute(GUARDED.insert(), {"alias": one.alias, "models": one.models, "models_like": one.like})
    if operators is not None:
        connection.execute(OPERATORS.delete())
        for name in operators:
            connection.execute(OPERATORS.insert(), {"name": name})


def give(connection: Any, role: str, schema: str) -> None:
    """Grant a server's role only what it needs: MLflow's tables, reading all of ours, and appending to the ledger."""
    if connection.dialect.name != "postgresql":
        raise UsageError(f"--server-role {role}: SQLite has no roles; expected a PostgreSQL database")
    quoted, place = (connection.dialect.identifier_preparer.quote_identifier(name) for name in (role, schema))
    for statement in (
        f"GRANT USAGE ON SCHEMA {place} TO {quoted}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {place} TO {quoted}",
        f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {place} TO {quoted}",
        f"REVOKE UPDATE, DELETE, TRUNCATE ON {LEDGER.name} FROM {quoted}",
        *(f"REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON {name} FROM {quoted}" for name in NOT_ADDED_TO),
    ):
        connection.exec_driver_sql(statement)


def settings(connection: Any) -> tuple[tuple[Guarded, ...], tuple[str, ...]]:
    """What is guarded, and who may override (empty: nobody was named)."""
    guarded = tuple(
        Guarded(alias=row.alias, models=row.models)
        for row in connection.execute(
            sa.select(GUARDED.c.alias, GUARDED.c.models).order_by(GUARDED.c.alias, GUARDED.c.models)
        )
    )
    return guarded, tuple(connection.execute(sa.select(OPERATORS.c.name).order_by(OPERATORS.c.name)).scalars())


def uninstall(engine: sa.Engine, signer: Signer | None, actor: str, reason: str) -> Row | None:
    """Remove the triggers, in one transaction; return the row that records it, None without a `signer`.

    Raises StoreError for a database without a ledger, and for an account that does not own the tables.
    """
    shown = engine.url.render_as_string(hide_password=True)
    try:
        with engine.begin() as connection:
            begin(connection)
            if not installed(connection):
                raise StoreError(f"{shown}: no ledger there; expected one; nothing to do")
            row = None
            if signer is not None:
                last = let_sign(connection, signer, actor)
                row = signed(removal(actor, reason, last), last, signer)
                table.append(connection, row)  # a witness learns of it with the next row
            for statement in triggers.drop(connection.dialect.name):
                connection.exec_driver_sql(statement)
            return row
    except sa.exc.SQLAlchemyError as error:
        raise StoreError(
            f"{shown}: {one_line(error)}; expected an account that owns the tables; run canary db uninstall as that one"
        ) from error


def removal(actor: str, reason: str, last: Row | None) -> Record:
    """The record of that row, which is about no model."""
    return Record(kind=Kind.UNINSTALL, word="uninstalled", facts={"actor": actor, "reason": reason, **stamp(last)})
