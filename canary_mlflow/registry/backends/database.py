"""Our own database, with its ledger and triggers: this process judges, signs and promotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from canary_mlflow.errors import BaselineMoved, CanaryError, Refused, StoreError
from canary_mlflow.ledger import table
from canary_mlflow.ledger.chain import FIRST, Kind, ReadRow, Row, checked, refuse_broken
from canary_mlflow.ledger.policy_rows import in_force_row
from canary_mlflow.ledger.writing import keys_in
from canary_mlflow.registry.backends.registry import Registry
from canary_mlflow.registry.guard.evaluated import Evaluation, evaluations_in
from canary_mlflow.registry.plugin import guarded_store
from canary_mlflow.registry.policies.in_force import InForce, from_row
from canary_mlflow.registry.pruning.pruned import in_words, row_of
from canary_mlflow.registry.versions import CHAMPION, seal_of
from canary_mlflow.registry.workspaces import active_workspace
from canary_mlflow.tracking.stores.places import sqlite_file
from canary_mlflow.tracking.stores.read_only import has_ledger, reading

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.ledger.chain import Record
    from canary_mlflow.ledger.install import Guarded
    from canary_mlflow.ledger.keys import PublicKeys
    from canary_mlflow.registry.guard.order import Order, Standing
    from canary_mlflow.registry.guard.store import GuardedStore

WAIT_SECONDS = 60.0


class Database(Registry):
    """The guard of a database, whichever store the client itself goes through. `uri`: the plain database URI."""

    signs = True

    def __init__(self, client: MlflowClient, uri: str) -> None:
        self.client, self.uri = client, uri

    @cached_property
    def store(self) -> GuardedStore:
        """MLflow's store with guarded aliases; opening it makes the ledger and the triggers if they are missing."""
        return guarded_store(self.uri, str(self.client.tracking_uri))

    @property
    def operators(self) -> tuple[str, ...]:
        return self.store.operators

    @property
    def guarded_aliases(self) -> tuple[Guarded, ...]:
        return self.store.guarded_aliases

    def must_sign(self, otherwise: CanaryError) -> None:
        """It does."""

    def standing(self, model: str, alias: str = CHAMPION) -> Standing:
        return self.store.standing(model, alias)

    def rows(
        self, model: str | None = None, *, everywhere: bool = False, naming: str = "", after: int = 0,
        most: int | None = None, **about: Any,
    ) -> list[Row]:  # fmt: skip
        return self.store.rows(model, everywhere=everywhere, naming=naming, after=after, most=most, **about)

    def life(self, session_id: str, model: str) -> list[Row]:
        rows = self.session_rows(session_id)
        if rows:
            keys = self.keys()
        for row in rows:
            refuse_broken(row, keys, f"session {row.alias}:")
        return rows

    def checked_rows(self, model: str, version: int) -> list[ReadRow] | None:
        """Without opening the store; None if the guard was never installed."""
        with reading(self.uri) as connection:
            if not has_ledger(connection):
                return None
            rows = list(table.read(connection, model, active_workspace(), version=version))
            return checked([(row, digest_before(connection, row)) for row in rows], partial(keys_in, connection))

    def keys(self) -> PublicKeys:
        return self.store.keys()

    def governing(self, model: str) -> InForce | None:
        """The one that the ledger sets. A row that does not hold is refused: otherwise anybody who can write rows
        without a key could choose the policy."""
        row = in_force_row(self.policy_rows(model), model)
        return None if row is None else from_row(row, model, self.keys())

    def policy_rows(self, model: str | None) -> list[Row]:
        return self.rows("", kind=Kind.POLICY, version=0)

    def seal(self, found: ModelVersion) -> Mapping[str, Any] | None:
        """What the first row that sealed it says."""
        row = seal_of(self.rows(str(found.name), version=int(found.version)), found)
        if row is None:
            return None
        refuse_broken(row, self.keys(), f"version {found.version} of {found.name!r}: its seal,")
        return row.facts

    def evaluations(self, found: ModelVersion) -> list[Evaluation]:
        rows = self.rows(str(found.name), version=int(found.version), version_created=int(found.creation_timestamp),
                         kind=Kind.EVALS)  # fmt: skip
        keys = self.keys() if rows else None
        for row in rows:
            assert keys is not None
            refuse_broken(row, keys, f"version {found.version} of {found.name!r}: its evaluation,")
        return evaluations_in(rows)

    def pruned(self, found: ModelVersion) -> str:
        row = row_of(self, found)
        return "" if row is None else in_words(row)

    def refuse_key(self) -> None:
        self.store.refuse_key()

    def record(self, order: Order) -> Row:
        from mlflow.exceptions import MlflowException

        try:
            return self.store.carry_out(order)
        except MlflowException as error:
            if error.error_code == "RESOURCE_CONFLICT":
                raise BaselineMoved(str(error.message)) from error
            if error.error_code == "PERMISSION_DENIED":
                raise Refused(str(error.message)) from error
            raise

    def append(self, record: Record) -> Row:
        return self.store.append(record)

    @contextmanager
    def registering(self, wait: float = WAIT_SECONDS) -> Iterator[None]:
        """Hold the lock file beside SQLite: MLflow gives up after three lost races for one number. PostgreSQL is left
        to its own transactions."""
        file = sqlite_file(self.uri)
        if file is None:
            yield
            return
        lock = FileLock(f"{file}.registry.lock")
        try:
            lock.acquire(timeout=wait)
        except Timeout as error:
            raise StoreError(
                f"registry lock: {lock.lock_file} has been held for {wait:.0f} s; expected a promotion to take less "
                "than one; end the process that holds it, then try again"
            ) from error
        try:
            yield
        finally:
            lock.release()


def digest_before(connection: Any, row: Row) -> str | None:
    """The digest that a row must have as that of the previous row."""
    if row.seq == 1:
        return FIRST
    before = table.row_at(connection, row.seq - 1)
    return None if before is None else before.digest
