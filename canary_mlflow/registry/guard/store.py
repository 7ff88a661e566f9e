"""MLflow's registry store with guarded aliases: what is guarded, who holds it, what is refused, how an alias moves.

Everything unguarded behaves as in MLflow. Signatures are those of MLflow's store, which calls some of them by position.
The private names of MLflow used here are listed in tests/private_names.py.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa
from mlflow.entities.model_registry.model_version_stages import get_canonical_stage
from mlflow.exceptions import MlflowException
from mlflow.prompt.constants import IS_PROMPT_TAG_KEY
from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE
from mlflow.store.model_registry.abstract_store import AbstractStore
from mlflow.store.model_registry.dbmodels.models import (
    SqlRegisteredModel,
    SqlRegisteredModelAlias,
)
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore
from mlflow.store.model_registry.sqlalchemy_workspace_store import WorkspaceAwareSqlAlchemyStore
from sqlalchemy.orm import Session

from canary_mlflow import tags
from canary_mlflow.errors import Refused
from canary_mlflow.ledger import install, table
from canary_mlflow.ledger.chain import Record, Row, stamp
from canary_mlflow.ledger.keys import PublicKeys, key_folder, load_signer
from canary_mlflow.ledger.writing import add, keys_in, let_sign, refused
from canary_mlflow.mlflow_internals import writing
from canary_mlflow.notify.mlflow_webhooks import announce
from canary_mlflow.registry.actors import current_actor
from canary_mlflow.registry.guard import refusals, stored
from canary_mlflow.registry.guard.binding import artifact_digest, run_digests
from canary_mlflow.registry.guard.order import Binding, Order, Standing
from canary_mlflow.registry.guard.promotion import carry_out, promote, standing
from canary_mlflow.tags import SESSION_ID
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


UNSEEN = ("Mn", "Me", "Cf", "Cc")  # Unicode's categories of accents, of format characters such as ZERO WIDTH SPACE …
log = logging.getLogger(__name__)


class Guard(Ledgered):
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


NO_STAGE = "None"


class GuardedMethods(Guard):
    """MLflow's methods through which a guarded alias could be moved, removed or faked."""

    def set_registered_model_alias(self, name, alias, version):  # type: ignore[no-untyped-def]
        if not str(alias).isascii() and self.guards_model(str(name)):
            raise refusals.not_plain(alias, name, version)
        # The alias's trigger asks the ledger in MLflow's own transaction: no query of ours, and no row in between.
        ask = not self.has_triggers or alias != plain_alias(alias)  # it knows an alias in its plain spelling
        if not self.guards(str(name), str(alias), ask=ask):
            try:
                return super().set_registered_model_alias(name, alias, version)
            except MlflowException:
                self.read_settings()
                if not self.guards(str(name), str(alias)):
                    raise
        if alias != plain_alias(alias):
            raise refusals.no_verdict(plain_alias(alias), name, version)
        promote(self, name, version, alias, current_actor())  # MLflow's own handler tells its webhooks

    def delete_registered_model_alias(self, name, alias):  # type: ignore[no-untyped-def]
        if not self.guards(str(name), str(alias)):
            return super().delete_registered_model_alias(name, alias)
        with self.ManagedSessionMaker() as session:
            self._get_registered_model(session, name)
            held = standing(self, session, name, alias).version
        raise refusals.stays(alias, name, "none" if held is None else held)

    def rename_registered_model(self, name, new_name):  # type: ignore[no-untyped-def]
        self.refuse_if_held(name, "renaming the model")
        self.refuse_if_held(name, f"the name {new_name!r}, which is guarded,", under=new_name)
        self.refuse_used_name(new_name)
        if new_name != name:
            self.refuse_held_name(new_name)
        return super().rename_registered_model(name, new_name)

    def delete_registered_model(self, name):  # type: ignore[no-untyped-def]
        self.refuse_if_held(name, "deleting the model")
        return super().delete_registered_model(name)

    def create_registered_model(self, name, tags=None, description=None, deployment_job_id=None):  # type: ignore[no-untyped-def]
        self.refuse_used_name(name)
        self.refuse_reserved(name, None, (tag.key for tag in tags or ()))
        return super().create_registered_model(name, tags, description, deployment_job_id)

    def create_model_version(  # type: ignore[no-untyped-def]
        self,
        name,
        source,
        run_id=None,
        tags=None,
        run_link=None,
        description=None,
        local_model_path=None,
        model_id=None,
    ):
        if tags:
            if urlsplit(str(source)).scheme == "models":
                # A copy brings along its original's tags, but the verdict belongs to the original only.
                tags = [tag for tag in tags if not is_reserved(tag.key)]
            else:
                # The tag that says where the evidence is may be given now, and never later.
                self.refuse_reserved(name, "new", (tag.key for tag in tags if tag.key != SESSION_ID))
        return super().create_model_version(
            name, source, run_id, tags, run_link, description, local_model_path, model_id
        )

    def delete_model_version(self, name, version):  # type: ignore[no-untyped-def]
        self.refuse_if_held(name, "deleting the version", version)
        return super().delete_model_version(name, version)

    def transition_model_version_stage(self, name, version, stage, archive_existing_versions):  # type: ignore[no-untyped-def]
        if get_canonical_stage(stage) != NO_STAGE and self.guards_model(str(name)):
            raise refusals.no_stages(name, version, stage)
        return super().transition_model_version_stage(name, version, stage, archive_existing_versions)

    def set_model_version_tag(self, name, version, tag):  # type: ignore[no-untyped-def]
        self.refuse_reserved(name, version, (tag.key,))
        self.refuse_other_kind(name, tag.key)
        return super().set_model_version_tag(name, version, tag)

    def delete_model_version_tag(self, name, version, key):  # type: ignore[no-untyped-def]
        self.refuse_reserved(name, version, (key,))
        self.refuse_other_kind(name, key)
        return super().delete_model_version_tag(name, version, key)

    def set_registered_model_tag(self, name, tag):  # type: ignore[no-untyped-def]
        self.refuse_reserved(name, None, (tag.key,))
        self.refuse_other_kind(name, tag.key)
        return super().set_registered_model_tag(name, tag)

    def delete_registered_model_tag(self, name, key):  # type: ignore[no-untyped-def]
        self.refuse_reserved(name, None, (key,))
        self.refuse_other_kind(name, key)
        return super().delete_registered_model_tag(name, key)


class GuardedStore(GuardedMethods, SqlAlchemyStore):  # type: ignore[misc]
    """The guard before MLflow's store."""


class GuardedWorkspaceStore(GuardedMethods, WorkspaceAwareSqlAlchemyStore):  # type: ignore[misc]
    """The guard before MLflow's store with workspaces."""
