"""MLflow's store of a database that has a ledger: its sessions, its versions, and the ledger's rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE
from mlflow.store.model_registry.abstract_store import AbstractStore
from sqlalchemy.orm import Session

from canary_mlflow.errors import Refused
from canary_mlflow.ledger import table
from canary_mlflow.ledger.chain import stamp
from canary_mlflow.ledger.keys import PublicKeys, key_folder, load_signer
from canary_mlflow.ledger.rows import Record, Row
from canary_mlflow.ledger.writing import add, keys_in, let_sign, refused
from canary_mlflow.mlflow_internals import writing
from canary_mlflow.registry.guard import refusals, stored
from canary_mlflow.registry.guard.binding import artifact_digest, run_digests
from canary_mlflow.registry.guard.order import Binding
from canary_mlflow.tracking.reading.database import read_runs_from
from canary_mlflow.tracking.reading.facts import count


class Ledgered(AbstractStore):  # type: ignore[misc]
    """A mixin before MLflow's SQL store. `tracking_uri`: the plain URI of the database of runs."""

    tracking_uri: str

    def version_in(self, session: Any, model: str, version: str, alias: str, *, kept: bool = False) -> stored.Seen:
        """A version and what bears on it (`stored.seen`). Raises MLflow's own error if there is none."""
        place, number = self._get_active_workspace(), count(str(version))
        found = stored.seen(session, place, model, number, alias, kept=kept)
        if found is None:
            self._get_sql_model_version(session, model, version)
            raise refusals.stale(alias, model, version, "it was made only now, or its number is spelled otherwise")
        return found

    @contextmanager
    def asking(self) -> Iterator[Session]:
        """A session for reading only, without a transaction, whose begin and end would each cost a round trip to the
        server."""
        with Session(self.engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
            try:
                yield session
            except sa.exc.OperationalError as error:  # as MLflow's own sessions do
                raise MlflowException(str(error), error_code=TEMPORARILY_UNAVAILABLE) from error

    def is_prompt(self, model: str) -> bool:
        """Whether a model is one of MLflow's prompts."""
        with self.asking() as session:
            return stored.is_prompt(session, self._get_active_workspace(), model)

    def rows(self, model: str | None = None, *, everywhere: bool = False, **about: Any) -> list[Row]:
        """The rows of the ledger that `table.read` finds, in the active workspace or `everywhere`."""
        place = None if everywhere else self._get_active_workspace()
        with self.ManagedSessionMaker() as session:
            return list(table.read(session, model, place, **about))

    def keys(self) -> PublicKeys:
        """The keys that this account trusts, with what the ledger's rows say about them."""
        with self.ManagedSessionMaker() as session:
            return keys_in(session)

    def refuse_key(self) -> None:
        """Raise Refused if the ledger does not let this account's key sign."""
        signer = load_signer(key_folder())
        with self.ManagedSessionMaker() as session:
            why = refused(session, signer)
        if why:
            raise Refused(why)

    def append(self, record: Record) -> Row:
        """Append a row of the active workspace that concerns no alias, in a separate transaction."""
        signer = load_signer(key_folder())
        with writing(self) as session:
            table.lock(session)
            last = let_sign(session, signer, str(record.facts["actor"]))
            facts = {**record.facts, **stamp(last)}
            return add(session, replace(record, workspace=self._get_active_workspace(), facts=facts), signer, last)

    def binding_now(self, created: int, source: str, place: str, run_ids: Sequence[str]) -> Binding:
        """The binding of a version as it is now; run ids that are gone are left out."""
        runs = run_digests(read_runs_from(self.tracking_uri, run_ids))
        return Binding(version_created=created, source=source, artifact=artifact_digest(place), runs=runs)
