"""What the registry's database says: models, their champions, and the ledger about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from canary_mlflow import tags
from canary_mlflow.ledger import table
from canary_mlflow.ledger.rows import Row
from canary_mlflow.registry.versions import CHAMPION
from canary_mlflow.registry.workspaces import active_workspace
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.stores.read_only import has_ledger

MODELS = sa.table("registered_models", *map(sa.column, ("workspace", "name")))
ALIASES = sa.table("registered_model_aliases", *map(sa.column, ("workspace", "name", "alias", "version")))
VERSIONS = sa.table("model_versions", *map(sa.column, ("workspace", "name", "version", "current_stage")))
VERSION_TAGS = sa.table("model_version_tags", *map(sa.column, ("workspace", "name", "version", "key", "value")))
DELETED = "Deleted_Internal"  # the stage that MLflow gives a deleted version


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A registered model. `last`: the newest ledger row about it, None if there is none."""

    name: str
    versions: int
    newest: int | None
    champion: int | None
    last: Row | None


def read_models(connection: sa.Connection) -> list[ModelFacts]:
    """All models of the active workspace, sorted by name."""
    place = active_workspace()
    names = names_of_models(connection)
    alive = sa.select(VERSIONS.c.name, VERSIONS.c.version).where(
        VERSIONS.c.current_stage != DELETED, VERSIONS.c.workspace == place
    )
    versions: Mapping[str, list[int]] = defaultdict(list)
    for name, version in connection.execute(alive):
        versions[name].append(version)
    champions = dict(read_champions(connection))
    last = {row.model: row for row in table.latest_of_models(connection, place)} if has_ledger(connection) else {}
    return [
        ModelFacts(
            name=name,
            versions=len(versions[name]),
            newest=max(versions[name], default=None),
            champion=champions.get(name),
            last=last.get(name),
        )
        for name in names
    ]


def names_of_models(connection: sa.Connection) -> list[str]:
    """The names of all models of the active workspace, sorted."""
    mine = sa.select(MODELS.c.name).where(MODELS.c.workspace == active_workspace())
    return list(connection.execute(mine.order_by(MODELS.c.name)).scalars())


def read_champions(connection: sa.Connection, model: str | None = None) -> list[tuple[str, int]]:
    """(model, version) of every champion of the active workspace, or only of one model's."""
    query = sa.select(ALIASES.c.name, ALIASES.c.version).where(
        ALIASES.c.alias == CHAMPION, ALIASES.c.workspace == active_workspace()
    )
    if model is not None:
        query = query.where(ALIASES.c.name == model)
    return [(name, version) for name, version in connection.execute(query)]


def champion_session(connection: sa.Connection, model: str) -> tuple[int | None, str]:
    """The champion's version and the session that is its evidence; (None, '') if there is no champion."""
    found = read_champions(connection, model)
    if not found:
        return None, ""
    version = found[0][1]
    return version, session_of(connection, model, version)


def session_of(connection: sa.Connection, model: str, version: int) -> str:
    """The session that is a version's evidence; '' if none is known."""
    query = sa.select(VERSION_TAGS.c.value).where(
        VERSION_TAGS.c.workspace == active_workspace(),
        VERSION_TAGS.c.name == model,
        VERSION_TAGS.c.version == version,
        VERSION_TAGS.c.key == tags.SESSION_ID,
    )
    return connection.execute(query).scalars().first() or ""


def versions_of(connection: sa.Connection, sessions: Sequence[str]) -> dict[str, tuple[str, int, str]]:
    """Session → the newest version that it is the evidence of, and that version's verdict, '' for none. Only the
    ledger's own word can stand in a version's tag; who may edit a session can write another into the session's."""
    word = VERSION_TAGS.alias("word")
    same = (VERSION_TAGS.c.workspace == word.c.workspace, VERSION_TAGS.c.name == word.c.name)
    judged = sa.and_(*same, VERSION_TAGS.c.version == word.c.version, word.c.key == tags.VERDICT)
    query = (
        sa.select(VERSION_TAGS.c.value, VERSION_TAGS.c.name, VERSION_TAGS.c.version, word.c.value)
        .select_from(VERSION_TAGS.outerjoin(word, judged))
        .where(VERSION_TAGS.c.workspace == active_workspace(), VERSION_TAGS.c.key == tags.SESSION_ID)
        .where(VERSION_TAGS.c.value.in_(sessions))
        .order_by(VERSION_TAGS.c.version)
    )
    found = connection.execute(query) if sessions else ()
    return {session: (name, version, said or "") for session, name, version, said in found}


def with_words(connection: sa.Connection, heads: Sequence[RunFacts]) -> dict[str, RunFacts]:
    """The sessions by id, each that left a version with that version's verdict."""
    known = versions_of(connection, [head.run_id for head in heads])
    words = {session: {tags.VERDICT: word} for session, (_, _, word) in known.items()}
    return {head.run_id: replace(head, tags={**head.tags, **words.get(head.run_id, {})}) for head in heads}


def newest_sessions(connection: sa.Connection, model: str, most: int) -> list[str]:
    """The sessions that are the evidence of a model's versions, newest version first, from at most `most` versions."""
    query = (
        sa.select(VERSION_TAGS.c.value)
        .where(VERSION_TAGS.c.workspace == active_workspace(), VERSION_TAGS.c.name == model)
        .where(VERSION_TAGS.c.key == tags.SESSION_ID)
        .order_by(VERSION_TAGS.c.version.desc())
    )
    return list(dict.fromkeys(connection.execute(query.limit(most)).scalars()))


def version_behind(connection: sa.Connection, model: str, alias: str) -> int | None:
    """The version that an alias names; None if it names none."""
    query = sa.select(ALIASES.c.version).where(
        ALIASES.c.workspace == active_workspace(), ALIASES.c.name == model, ALIASES.c.alias == alias
    )
    return connection.execute(query).scalars().first()


def is_model(connection: sa.Connection, name: str) -> bool:
    """Whether a model of that name is registered."""
    query = sa.select(MODELS.c.name).where(MODELS.c.workspace == active_workspace(), MODELS.c.name == name)
    return connection.execute(query).first() is not None
