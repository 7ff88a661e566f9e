"""The guard of a registry: what is guarded, who holds it, what is refused, and how a guarded alias moves.

The private names of MLflow used here and in `store.py` are listed in tests/private_names.py.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from mlflow.prompt.constants import IS_PROMPT_TAG_KEY
from mlflow.store.model_registry.dbmodels.models import (
    SqlRegisteredModel,
    SqlRegisteredModelAlias,
)

from canary_mlflow import tags
from canary_mlflow.ledger import install, table
from canary_mlflow.ledger.rows import Row
from canary_mlflow.notify.mlflow_webhooks import announce
from canary_mlflow.registry.guard import refusals
from canary_mlflow.registry.guard.ledgered import Ledgered
from canary_mlflow.registry.guard.order import Order, Standing
from canary_mlflow.registry.guard.promotion import carry_out, standing

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
