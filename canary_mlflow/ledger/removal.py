"""Removes the guard: the triggers go, the ledger stays and records that."""

from __future__ import annotations

import sqlalchemy as sa

from canary_mlflow.errors import StoreError, one_line
from canary_mlflow.ledger import table, triggers
from canary_mlflow.ledger.clock import stamp
from canary_mlflow.ledger.install import begin, installed
from canary_mlflow.ledger.keys import Signer
from canary_mlflow.ledger.rows import Kind, Record, Row, signed
from canary_mlflow.ledger.writing import let_sign


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
                row = signed(record(actor, reason, last), last, signer)
                table.append(connection, row)  # a witness learns of it with the next row
            for statement in triggers.drop(connection.dialect.name):
                connection.exec_driver_sql(statement)
            return row
    except sa.exc.SQLAlchemyError as error:
        raise StoreError(
            f"{shown}: {one_line(error)}; expected an account that owns the tables; run canary db uninstall as that one"
        ) from error


def record(actor: str, reason: str, last: Row | None) -> Record:
    """The record of that row, which is about no model."""
    return Record(
        kind=Kind.UNINSTALL, model="", version=0, version_created=0, alias="", word="uninstalled", grants=False,
        moves=False, facts={"actor": actor, "reason": reason, **stamp(last)},
    )  # fmt: skip
