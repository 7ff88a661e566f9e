"""MLflow's own tables, as far as a promotion reads and writes them: versions, aliases, tags.

Single columns and statements built once, because this runs under the lock, and MLflow's objects would load everything
around them. `benchmarks/guard.py` measures the cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from mlflow.entities.model_registry.model_version_stages import STAGE_DELETED_INTERNAL
from mlflow.prompt.constants import IS_PROMPT_TAG_KEY
from mlflow.store.model_registry.dbmodels.models import (
    SqlModelVersion,
    SqlModelVersionTag,
    SqlRegisteredModelAlias,
    SqlRegisteredModelTag,
)

from canary_mlflow.ledger import table

_VERSIONS, _ALIASES = SqlModelVersion.__table__, SqlRegisteredModelAlias.__table__
_TAGS = SqlRegisteredModelTag.__table__
_VERSION = ("workspace", "name", "version", "creation_time", "source", "storage_location")
_THIS_VERSION = (
    *(_VERSIONS.c["name" if key == "model" else key] == sa.bindparam(key) for key in ("workspace", "model", "version")),
    _VERSIONS.c.current_stage != STAGE_DELETED_INTERNAL,
)
# PostgreSQL: nobody can delete it until this transaction ends; an earlier deletion is waited for, and seen.
_KEPT = sa.select(_VERSIONS.c.version).where(*_THIS_VERSION).with_for_update(read=True)
_ALIAS_KEY = ("workspace", "name", "alias")
_HOLDER = sa.select(_ALIASES.c.version).where(*(_ALIASES.c[key] == sa.bindparam(key) for key in _ALIAS_KEY))
# One query instead of six: on a server, each round trip costs more than the query. Not combined with `_KEPT`, which may
# wait, and then re-reads only its own row.
_CREATED = sa.select(_VERSIONS.c.creation_time).where(*_THIS_VERSION).scalar_subquery()
_SEEN = (
    sa.select(table.LEDGER, *(_VERSIONS.c[key].label(f"its_{key}") for key in _VERSION), _HOLDER.scalar_subquery())
    .select_from(_VERSIONS.outerjoin(table.LEDGER, table.bears_on(_CREATED)))
    .where(*_THIS_VERSION)
    .order_by(table.LEDGER.c.seq)
)
_PROMPT = sa.select(_TAGS.c.value).where(
    *(_TAGS.c[key] == sa.bindparam(key) for key in ("workspace", "name")), _TAGS.c.key == IS_PROMPT_TAG_KEY
)
_ALIASES_OF = sa.select(_ALIASES.c.alias).where(
    *(_ALIASES.c[key] == sa.bindparam(key) for key in ("workspace", "name", "version"))
)
# `its_`: SQLAlchemy keeps the columns' own names for what an UPDATE sets.
_MOVE = (
    _ALIASES.update()
    .where(*(_ALIASES.c[key] == sa.bindparam(f"its_{key}") for key in _ALIAS_KEY))
    .values(version=sa.bindparam("its_version"))
)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A version as it is stored, the version that an alias names, and the ledger's rows about both."""

    workspace: str
    name: str
    version: int
    creation_time: int
    source: str | None
    storage_location: str | None
    holder: int | None
    said: table.Bearing


def seen(session: Any, workspace: str, model: str, version: int, alias: str, *, kept: bool = False) -> Seen | None:
    """What decides whether a version may hold an alias; None if the version does not exist. `kept`: it cannot be
    deleted until the transaction ends."""
    key = {"workspace": workspace, "model": model, "version": version}
    if kept:
        session.execute(_KEPT, key)
    found = session.execute(_SEEN, {**key, "name": model, "alias": alias}).all()
    if not found:
        return None
    *columns, held = found[0][-len(_VERSION) - 1 :]
    its: dict[str, Any] = dict(zip(_VERSION, columns, strict=True))
    created = its["creation_time"]
    said = table.bearing(found, workspace=workspace, model=model, version=version, version_created=created, alias=alias)
    return Seen(**its, holder=None if held is None else int(held), said=said)


def is_prompt(session: Any, workspace: str, model: str) -> bool:
    """Whether the model is one of MLflow's prompts."""
    found = session.execute(_PROMPT, {"workspace": workspace, "name": model}).scalar()
    return str(found).lower() == "true"


def holder(session: Any, workspace: str, model: str, alias: str) -> int | None:
    """The version that an alias names."""
    found = session.execute(_HOLDER, {"workspace": workspace, "name": model, "alias": alias}).scalar()
    return None if found is None else int(found)


def aliases_of(session: Any, version: Any) -> list[str]:
    """Every alias that names a version."""
    key = {"workspace": version.workspace, "name": version.name, "version": version.version}
    return sorted(str(alias) for alias in session.execute(_ALIASES_OF, key).scalars())


def write_alias(session: Any, version: Any, alias: str) -> None:
    """Give a version the alias, wherever it was before."""
    held = {"workspace": version.workspace, "name": version.name, "alias": alias, "version": version.version}
    if not session.execute(_MOVE, {f"its_{key}": value for key, value in held.items()}).rowcount:
        session.execute(_ALIASES.insert(), held)


def write_tag(session: Any, version: Any, key: str, value: str) -> None:
    """Set a tag of a version, replacing an earlier value."""
    where = {"workspace": version.workspace, "name": version.name, "version": version.version}
    session.merge(SqlModelVersionTag(**where, key=key, value=value))
