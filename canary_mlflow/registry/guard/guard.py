"""The guard of a registry: what is guarded, who holds it, what is refused, and how a guarded alias moves.

The private names of MLflow used here and in `store.py` are listed in tests/private_names.py.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from mlflow.exceptions import MlflowException
from mlflow.prompt.constants import IS_PROMPT_TAG_KEY
from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE
from mlflow.store.model_registry.abstract_store import AbstractStore
from mlflow.store.model_registry.dbmodels.models import (
    SqlRegisteredModel,
    SqlRegisteredModelAlias,
)
from sqlalchemy.orm import Session

from canary_mlflow import tags
from canary_mlflow.errors import Refused
from canary_mlflow.ledger import install, table
from canary_mlflow.ledger.clock import stamp
from canary_mlflow.ledger.keys import PublicKeys, key_folder, load_signer
from canary_mlflow.ledger.rows import Record, Row
from canary_mlflow.ledger.writing import add, keys_in, let_sign, refused
from canary_mlflow.mlflow_internals import writing
from canary_mlflow.notify.mlflow_webhooks import announce
from canary_mlflow.registry.guard import refusals, stored
from canary_mlflow.registry.guard.binding import Binding, artifact_digest, run_digests
from canary_mlflow.registry.guard.promotion import Order, Standing, carry_out, standing
from canary_mlflow.tracking.reading.database import read_runs_from
from canary_mlflow.tracking.reading.facts import count

UNSEEN = ("Mn", "Me", "Cf", "Cc")  # Unicode's categories of accents, of format characters such as ZERO WIDTH SPACE …
log = logging.getLogger(__name__)


class Guard(AbstractStore):  # type: ignore[misc]
    """The mixin before MLflow's store; `db_uri` and `tracking_uri` are plain database URIs."""

    def __init__(self, db_uri: str, tracking_uri: str = "", read_db_uri: str | None = None) -> None:
        # MLflow's SQL store comes next in the MRO; before 3.14 it knows no read replica.
        super().__init__(*filter(None, (db_uri, read_db_uri)))
        self.tracking_uri = tracking_uri or db_uri
        with self.engine.connect() as connection:
            there = install.installed(connection)
            missing = install.missing_triggers(connection) if there else []
            if missing:
                log.warning(
                    "canary guard: %d of its triggers are gone (%s …); expected all; run: canary db install",
                    len(missing),
                    missing[0],
                )
        if not there:
            install.install(self.engine)
        self.has_triggers = not missing
        self.read_settings()
        with self.engine.connect() as connection:
            self.names_with_rows = set(table.names_with_rows(connection))

    @classmethod
    def _get_or_create_engine(cls, db_uri: str) -> sa.Engine:
        """MLflow's engine of this database, which its own stores in this process share, with our listener."""
        engine: sa.Engine = super()._get_or_create_engine(db_uri).execution_options()
        sa.event.listen(engine, "handle_error", refusals.by_trigger)
        return engine

    # What is guarded

    def read_settings(self) -> None:
        """Learn which aliases are guarded: at first, and when a trigger refuses what `canary db install` has added."""
        with self.engine.connect() as connection:
            self.guarded_aliases, _ = install.settings(connection)

    @property
    def operators(self) -> tuple[str, ...]:
        """Who may act by hand, read from the database each time (empty: nobody was named): a removed operator must lose
        the right without a server's restart."""
        with self.asking() as session:
            return install.settings(session)[1]

    def guards(self, model: str, alias: str, *, ask: bool = True) -> bool:
        """Whether this alias of this model, however spelled, moves by verdicts only. Without `ask`: as far as is known
        here, without a query."""
        plain = plain_alias(alias)
        return self.covers(model, [one for one in self.guarded_aliases if one.alias == plain], ask=ask)

    def guards_model(self, model: str) -> bool:
        """Whether the model has any guarded alias."""
        return self.covers(model, self.guarded_aliases)

    def covers(self, model: str, some: Sequence[install.Guarded], *, ask: bool = True) -> bool:
        """Whether one of these covers the model. The ledger is asked last, as a query would slow down unguarded
        calls."""
        if any(one.pattern.fullmatch(model) for one in some):
            return True
        return any(one.models == install.WITH_ROWS for one in some) and self.has_rows(model, ask=ask)

    def has_rows(self, model: str, *, ask: bool = True) -> bool:
        """Whether the ledger has a row about the name. Once it has, it always will."""
        name = self._get_active_workspace(), model
        if name not in self.names_with_rows:
            if not ask:
                return False
            with self.asking() as session:
                if not table.has_rows(session, *name):
                    return False
            self.names_with_rows.add(name)
        return True

    def guarded_holders(self, session: Any, model: str, under: str | None = None) -> list[tuple[str, int]]:
        """The guarded aliases of a model that are held, with their versions. `under`: as if the model had this name."""
        held = self._get_query(session, SqlRegisteredModelAlias).filter(SqlRegisteredModelAlias.name == model).all()
        name = model if under is None else under
        return [(str(one.alias), int(one.version)) for one in held if self.guards(name, str(one.alias))]

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

    # Moving a guarded alias

    def carry_out(self, order: Order) -> Row:
        """Record a verdict or an act, and move the alias if it says so, in one transaction."""
        rows = carry_out(self, order)
        announce(self, rows, order.tags)
        return rows[-1]

    def standing(self, model: str, alias: str = "champion") -> Standing:
        """Who holds an alias; to be passed back when something that was judged against it is recorded."""
        with self.ManagedSessionMaker() as session:
            return standing(self, session, model, alias)

    def moves(self, model: str, alias: str = "champion") -> list[Row]:
        """The rows that moved an alias, newest first."""
        with self.ManagedSessionMaker() as session:
            return table.moves(session, self._get_active_workspace(), model, alias)

    def ledger(
        self, model: str | None = None, version: int | None = None, *, after: int = 0, most: int | None = None
    ) -> list[Row]:
        """The rows of the ledger in order: all, or those of one model, or of its version, in the active workspace.
        `after` and `most` as for `table.read`."""
        place = None if model is None else self._get_active_workspace()
        with self.ManagedSessionMaker() as session:
            return list(table.read(session, model, place, version=version, after=after, most=most))

    def keys(self) -> PublicKeys:
        """The keys that this account trusts, with what the ledger's rows say about them."""
        with self.ManagedSessionMaker() as session:
            return keys_in(session)

    def policies(self) -> list[Row]:
        """The rows of the ledger that set policies, in order."""
        with self.ManagedSessionMaker() as session:
            return table.policies(session, self._get_active_workspace())

    def session_rows(self, session_id: str) -> list[Row]:
        """The rows about a session's beginning, end and later runs."""
        with self.ManagedSessionMaker() as session:
            return table.of_session(session, session_id)

    def sessions_after(self, seq: int) -> list[Row]:
        """The rows of all sessions in the active workspace after row `seq`."""
        with self.ManagedSessionMaker() as session:
            return table.sessions_after(session, self._get_active_workspace(), seq)

    def sessions_naming(self, text: str) -> list[Row]:
        """The rows of sessions that name a run, by its id."""
        with self.ManagedSessionMaker() as session:
            return table.sessions_naming(session, text)

    def seals_naming(self, text: str) -> list[Row]:
        """The seals that name a session, by its id."""
        with self.ManagedSessionMaker() as session:
            return table.seals_naming(session, self._get_active_workspace(), text)

    def prunings(self, model: str) -> list[Row]:
        """The rows by which files of a model's versions were given up."""
        with self.ManagedSessionMaker() as session:
            return table.prunings(session, self._get_active_workspace(), model)

    def refuse_key(self) -> None:
        """Raise Refused if the ledger does not let this account's key sign."""
        signer = load_signer(key_folder())
        with self.ManagedSessionMaker() as session:
            why = refused(session, signer)
        if why:
            raise Refused(why)

    def append(self, record: Record) -> Row:
        """Append a row that concerns no alias, in a separate transaction."""
        signer = load_signer(key_folder())
        with writing(self) as session:
            table.lock(session)
            last = let_sign(session, signer, str(record.facts["actor"]))
            row = add(session, replace(record, facts={**record.facts, **stamp(last)}), signer, last)
        return row

    def binding_now(self, created: int, source: str, place: str, run_ids: Sequence[str]) -> Binding:
        """The binding of a version as it is now; run ids that are gone are left out."""
        runs = run_digests(read_runs_from(self.tracking_uri, run_ids))
        return Binding(version_created=created, source=source, artifact=artifact_digest(place), runs=runs)

    # Refusals

    def refuse_if_held(self, model: str, what: str, version: object = None, under: str | None = None) -> None:
        """Refuse an action that would affect a guarded alias: of one version, of the whole model, or by a new name."""
        if not self.guards_model(str(model if under is None else under)):
            return
        with self.ManagedSessionMaker() as session:
            for alias, holder in self.guarded_holders(session, model, under):
                if version is None or is_number(version, holder):
                    raise refusals.held(what, alias, model, holder)

    def refuse_used_name(self, model: str) -> None:
        """Refuse a name under which the ledger knows versions of an earlier model; MLflow itself refuses a name that is
        in use now."""
        if not isinstance(model, str) or not self.guards_model(model):
            return
        with self.ManagedSessionMaker() as session:
            place, about = self._get_active_workspace(), table.LEDGER.c
            where = (about.workspace == place, about.model == model, about.version > 0)
            rows = session.execute(sa.select(sa.func.count()).where(*where)).scalar_one()
            if rows and not self.has_model(session, model):
                raise refusals.name_taken(model, rows)

    def refuse_held_name(self, model: str) -> None:
        """Refuse the name of a model with a champion; MLflow's own answer would be the trigger's SQL."""
        with self.ManagedSessionMaker() as session:
            for alias, holder in self.guarded_holders(session, model):
                raise refusals.name_held(alias, model, holder)

    def has_model(self, session: Any, model: str) -> bool:
        """Whether a model of this name exists now."""

        return self._get_query(session, SqlRegisteredModel).filter(SqlRegisteredModel.name == model).first() is not None

    def refuse_reserved(self, model: str, version: object, keys: Iterable[str]) -> None:
        """Refuse tags that only the ledger writes, on any model: one that is not guarded yet may be judged next."""
        for key in keys:
            if is_reserved(key):
                raise refusals.reserved_tag(model, version, key)

    def refuse_other_kind(self, model: str, key: str) -> None:
        """Refuse to turn a guarded model or one of its versions into a prompt, or a prompt into a model: MLflow would
        then claim that it does not exist, and nobody could load it, have it judged or act on it."""
        if key == IS_PROMPT_TAG_KEY and self.guards_model(str(model)):
            raise refusals.stays_its_kind(model, key)


def plain_alias(alias: str) -> str:
    """An alias in the form in which it is matched: without case, without surrounding whitespace (MLflow lets a newline
    through), without accents and signs that nobody sees, and with the letters that Unicode counts as the same unified.
    """
    parts = unicodedata.normalize("NFKD", str(alias))
    return "".join(one for one in parts if unicodedata.category(one) not in UNSEEN).casefold().strip()


def is_number(spelled: object, number: int) -> bool:
    """Whether a database would read a client's text as this number: `01` is version 1 too."""
    try:
        return int(str(spelled)) == number
    except ValueError:
        return False


def is_reserved(key: object) -> bool:
    """Whether only the ledger may write this tag. A sign outside ASCII among ours counts as any: there are too many
    look-alikes for a table."""
    start = plain_alias(str(key))[: len(tags.OURS)]
    same = sum(ours == theirs for ours, theirs in zip(tags.OURS, start, strict=False))
    return same > 1 and same + sum(not sign.isascii() for sign in start) == len(tags.OURS)
