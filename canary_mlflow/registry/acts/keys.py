"""Acts on keys, as signed rows in the ledgers at hand."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.orm import Session

from canary_mlflow.errors import CanaryError, Refused, StoreError, UsageError, one_line
from canary_mlflow.ledger import table
from canary_mlflow.ledger.chain import Row, stamp
from canary_mlflow.ledger.keys import Signer, key_folder, load_signer
from canary_mlflow.ledger.succession import REVOKED, TRUSTED, VOID, key_record
from canary_mlflow.ledger.uris import guarded_uri, is_guarded, plain_uri
from canary_mlflow.ledger.writing import add, check, keys_in, let_sign
from canary_mlflow.registry.actors import account, given
from canary_mlflow.tracking.stores.places import sqlite_file, without_password
from canary_mlflow.tracking.stores.read_only import PATIENCE, has_ledger, reading
from canary_mlflow.tracking.stores.store import resolve


def ledgers_at_hand(uris: Sequence[str]) -> list[str]:
    """The named databases; without any, the usual one if it has a ledger, else none."""
    if uris:
        return [plain_uri(uri) for uri in uris]
    found = plain_uri(os.environ.get("MLFLOW_REGISTRY_URI") or resolve(None))
    file = sqlite_file(found)
    if file is not None and not file.exists():
        return []
    return [found]


@contextmanager
def ledger_of(uri: str) -> Iterator[Session]:
    """A transaction as the only writer of a ledger. Raises StoreError if there is no writable ledger."""
    shown = without_password(uri)
    if not is_guarded(guarded_uri(uri)):
        raise StoreError(f"{shown}: its ledger is written on the server's own machine; expected its database there")
    place = resolve(uri)
    file = sqlite_file(place)
    if file is not None and not file.exists():
        raise StoreError(f"{shown}: no store there; expected a database with a ledger")
    patience = {"timeout": PATIENCE} if file is not None else {}
    engine = sa.create_engine(place, poolclass=sa.pool.NullPool, connect_args=patience)
    try:
        with Session(engine) as session, session.begin():
            if not has_ledger(session.connection()):
                raise StoreError(f"{shown}: no ledger there; expected one; canary db install makes it")
            table.lock(session)
            yield session
    except sa.exc.SQLAlchemyError as error:
        raise StoreError(f"{shown}: {one_line(error)}; expected a ledger that this account may add to") from error


def check_key(uri: str, signer: Signer) -> None:
    """Raise Refused if the database has a ledger that does not know this account's key."""
    file = sqlite_file(plain_uri(uri))
    if file is not None and not file.exists():
        return
    with reading(plain_uri(uri)) as connection:
        if has_ledger(connection):
            check(connection, signer)


def record_rotation(uri: str, *, anew: bool) -> str:
    """Record this account's new key in a ledger; return what happened, in words. `anew`: the previous key is lost, so
    no other key vouches for the new one, which `canary audit verify` shows."""
    shown = without_password(uri)
    signer = load_signer(key_folder())
    try:
        with ledger_of(uri) as session:
            last = table.last(session)
            if last is None:
                return f"nothing to record in {shown}: its ledger is empty"
            if anew:
                reason = "the key before it is lost"
                record = key_record(TRUSTED, signer.key_id, account(), reason, stamp(last), public=signer.public)
                row: Row | None = add(session, record, signer, last)
            else:
                row = let_sign(session, signer, account())
    except CanaryError as error:
        return f"not recorded in {shown}: {error}"
    assert row is not None
    return f"recorded in row {row.seq} of {shown}"


def let_in(uri: str, key_id: str, public: str) -> Row:
    """Write a row that lets another key sign. Raises Refused if the ledger already has that key, or does not know this
    account's."""
    signer = load_signer(key_folder())
    with ledger_of(uri) as session:
        last = let_sign(session, signer, account())
        known = keys_in(session).admitted or {}
        if key_id in known or table.first_signed(session, key_id) is not None:
            raise Refused(f"key {key_id}: the ledger knows it already; expected another; nothing to do")
        record = key_record(TRUSTED, key_id, account(), "it may sign", stamp(last), public=public)
        return effective(session, add(session, record, signer, last))


def revoke(uri: str, key_id: str, reason: str, since: int | None) -> Row:
    """Write a row that ends another key from row `since` on, or from this row on. Raises UsageError for a row that does
    not exist yet, Refused for a key that this account's key may not end."""
    reason = given(reason, "why the key ends; it is kept in the ledger")
    signer = load_signer(key_folder())
    with ledger_of(uri) as session:
        last = let_sign(session, signer, account())
        own = 1 if last is None else last.seq + 1
        if since is not None and not 0 < since <= own:
            raise UsageError(f"--from-row {since}: the ledger has {own - 1} rows; expected one of them, or none given")
        record = key_record(REVOKED, key_id, account(), reason, stamp(last), from_row=since or own)
        return effective(session, add(session, record, signer, last))


def effective(session: Session, row: Row) -> Row:
    """The row, if it has an effect for a verifier; otherwise raises Refused, and nothing is written."""
    if why := keys_in(session).void.get(row.seq):
        raise Refused(f"{why.removeprefix(VOID)}; expected a key above it in use here; nothing was written")
    return row
