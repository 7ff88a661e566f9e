"""MLflow's own tables, as far as a promotion reads and writes them: versions, aliases, tags.

Single columns and statements built once, because this runs under the lock, and MLflow's objects would load everything
around them. `benchmarks/guard.py` measures the cost.
"""

from __future__ import annotations

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

_VERSIONS, _ALIASES = SqlModelVersion.__table__, SqlRegisteredModelAlias.__table__
_TAGS = SqlRegisteredModelTag.__table__
_VERSION = sa.select(
    *(_VERSIONS.c[key] for key in ("workspace", "name", "version", "creation_time", "source", "storage_location"))
).where(
    *(_VERSIONS.c[key] == sa.bindparam(key) for key in ("workspace", "name", "version")),
    _VERSIONS.c.current_stage != STAGE_DELETED_INTERNAL,
)
# PostgreSQL: nobody can delete it until this transaction ends; an earlier deletion is waited for, and seen.
_VERSION_KEPT = _VERSION.with_for_update(read=True)
_ALIAS_KEY = ("workspace", "name", "alias")
_HOLDER = sa.select(_ALIASES.c.version).where(*(_ALIASES.c[key] == sa.bindparam(key) for key in _ALIAS_KEY))
# Not combined with `_VERSION_KEPT`, which may wait, and then re-reads only its own row.
_VERSION_HELD = _VERSION.add_columns(_HOLDER.scalar_subquery().label("holder"))
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


def version_row(session: Any, workspace: str, model: str, version: int, alias: str = "", *, kept: bool = False) -> Any:
    """A version's key, creation time, source and place, and as `holder` the version that an alias names; None if the
    version does not exist. `kept`: lock the row until the transaction ends; then without `holder`."""
    key = {"workspace": workspace, "name": model, "version": version}
    if kept:
        return session.execute(_VERSION_KEPT, key).first()
    return session.execute(_VERSION_HELD, {**key, "alias": alias}).first()


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
