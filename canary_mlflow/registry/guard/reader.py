"""A registry's database as an auditor reads it: every workspace, without writing, and without MLflow's stores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from canary_mlflow import tags
from canary_mlflow.errors import StoreError, UsageError
from canary_mlflow.ledger import install, table
from canary_mlflow.ledger.chain import Row
from canary_mlflow.ledger.keys import PublicKeys
from canary_mlflow.ledger.uris import guarded_uri, is_guarded, plain_uri
from canary_mlflow.ledger.writing import keys_in
from canary_mlflow.registry.guard.store import plain_alias
from canary_mlflow.tracking.stores.places import sqlite_file, without_password
from canary_mlflow.tracking.stores.read_only import (
    ALIASES,
    DELETED,
    VERSION_TAGS,
    VERSIONS,
    has_ledger,
    read_only_uri,
    reading,
)
from canary_mlflow.tracking.stores.store import refuse_missing, resolve

Model = tuple[str, str]  # workspace and name
Version = tuple[str, str, int]  # workspace, name and number


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads a registry for an audit. `registry`, `tracking`: plain database URIs, of models and ledger, and of runs."""

    registry: str
    tracking: str

    @contextmanager
    def open(self) -> Iterator[sa.Connection]:
        """A connection that can only read. Raises StoreError, also if there is no ledger."""
        with reading(self.registry) as connection:
            if not has_ledger(connection):
                shown = without_password(self.registry)
                raise StoreError(f"{shown}: no ledger there; expected one; canary db install makes it")
            yield connection

    def ledger(self, model: str | None = None, workspace: str | None = None) -> list[Row]:
        """Rows in order: all, or those of a model, in one workspace or in all."""
        with self.open() as connection:
            return list(table.read(connection, model, workspace))

    def keys(self, trusted: PublicKeys) -> PublicKeys:
        """These keys, with what the ledger's rows say about them."""
        with self.open() as connection:
            return keys_in(connection, trusted)

    def guarded(self) -> tuple[install.Guarded, ...]:
        """What is guarded now."""
        with self.open() as connection:
            return install.settings(connection)[0]

    def holders(self) -> dict[tuple[Model, str], int]:
        """Every guarded alias that is held, and by which version."""
        with self.open() as connection:
            guarded, _ = install.settings(connection)
            named = set(table.names_with_rows(connection))
            return {
                ((workspace, name), alias): version
                for workspace, name, alias, version in connection.execute(sa.select(ALIASES))
                if any(
                    one.alias == plain_alias(alias)
                    and ((workspace, name) in named if one.models == install.WITH_ROWS else one.pattern.fullmatch(name))
                    for one in guarded
                )
            }

    def shown(self) -> dict[Version, dict[str, str]]:
        """Version → its tags that repeat what the ledger says."""
        found: dict[Version, dict[str, str]] = {}
        with self.open() as connection:
            query = sa.select(VERSION_TAGS).where(VERSION_TAGS.c.key.startswith(tags.OURS, autoescape=True))
            for workspace, name, version, key, value in connection.execute(query):
                found.setdefault((workspace, name, version), {})[key] = value
        return found

    def versions(self) -> dict[Version, Any]:
        """Every existing version."""
        with self.open() as connection:
            there = sa.select(VERSIONS).where(VERSIONS.c.current_stage != DELETED)
            return {(one.workspace, one.name, one.version): one for one in connection.execute(there)}


def reader_of(uri: str | None) -> Reader:
    """The reader of a store's database. Raises UsageError for a server's address, StoreError if there is no file."""
    tracking = resolve(None if uri is None else plain_uri(uri))
    found = plain_uri(os.environ.get("MLFLOW_REGISTRY_URI") or tracking)
    if not is_guarded(guarded_uri(found)):
        raise UsageError(
            f"{without_password(found)}: its ledger cannot be read from here; expected the database itself, or a file "
            "from `canary audit export` run there"
        )
    if file := sqlite_file(found):
        refuse_missing(file)
    return Reader(registry=found, tracking=read_only_uri(tracking))
