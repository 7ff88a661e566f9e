"""MLflow's own tables, as far as a promotion reads and writes them: versions, aliases, tags.

Columns alone, and statements put together once: this happens under the lock, and MLflow's objects bring everything
around them along. `benchmarks/guard.py` says what it costs.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from mlflow.entities.model_registry.model_version_stages import STAGE_DELETED_INTERNAL
from mlflow.store.model_registry.dbmodels.models import SqlModelVersion, SqlModelVersionTag, SqlRegisteredModelAlias

_VERSIONS, _ALIASES = SqlModelVersion.__table__, SqlRegisteredModelAlias.__table__
_VERSION = sa.select(
    *(_VERSIONS.c[key] for key in ("workspace", "name", "version", "creation_time", "source", "storage_location"))
).where(
    *(_VERSIONS.c[key] == sa.bindparam(key) for key in ("workspace", "name", "version")),
    _VERSIONS.c.current_stage != STAGE_DELETED_INTERNAL,
)
# PostgreSQL: until this transaction ends, nobody deletes it; a deletion that came first is waited for, and seen.
_VERSION_KEPT = _VERSION.with_for_update(read=True)
_ALIAS_KEY = ("workspace", "name", "alias")
_HOLDER = sa.select(_ALIASES.c.version).where(*(_ALIASES.c[key] == sa.bindparam(key) for key in _ALIAS_KEY))
# `its_`: SQLAlchemy keeps the columns' own names for what an UPDATE sets.
_MOVE = (
    _ALIASES.update()
    .where(*(_ALIASES.c[key] == sa.bindparam(f"its_{key}") for key in _ALIAS_KEY))
    .values(version=sa.bindparam("its_version"))
)


def version_row(session: Any, workspace: str, model: str, version: int, *, kept: bool = False) -> Any:
    """A version's key, creation time, source and place; None when it is not there. `kept`: as it is, until the
    transaction ends."""
    key = {"workspace": workspace, "name": model, "version": version}
    return session.execute(_VERSION_KEPT if kept else _VERSION, key).first()


def holder(session: Any, workspace: str, model: str, alias: str) -> int | None:
    """The version that an alias names."""
    found = session.execute(_HOLDER, {"workspace": workspace, "name": model, "alias": alias}).scalar()
    return None if found is None else int(found)


def write_alias(session: Any, version: Any, alias: str) -> None:
    """The alias of a version, wherever it was before."""
    held = {"workspace": version.workspace, "name": version.name, "alias": alias, "version": version.version}
    if not session.execute(_MOVE, {f"its_{key}": value for key, value in held.items()}).rowcount:
        session.execute(_ALIASES.insert(), held)


def write_tag(session: Any, version: Any, key: str, value: str) -> None:
    """A tag of a version, in place of the one it had."""
    where = {"workspace": version.workspace, "name": version.name, "version": version.version}
    session.merge(SqlModelVersionTag(**where, key=key, value=value))
