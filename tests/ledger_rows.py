"""Ledger rows that a test writes itself, signed with the account's own key."""

from __future__ import annotations

import sqlalchemy as sa

from canary_mlflow.ledger import chain, table
from canary_mlflow.ledger.chain import Kind, Record, signed
from canary_mlflow.ledger.keys import key_folder, load_signer


def note(uri: str, model: str) -> None:
    """A row about a name and no version of it, as what has only begun leaves."""
    engine = sa.create_engine(uri)
    with engine.begin() as connection:
        last = table.last(connection)
        record = Record(
            kind=Kind.SEAL, model=model, version=0, version_created=0, alias="", word="begun", grants=False,
            moves=False, facts=chain.stamp(last),
        )  # fmt: skip
        table.append(connection, signed(record, last, load_signer(key_folder())))
    engine.dispose()
