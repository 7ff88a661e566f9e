"""`canary db`: the ledger and its triggers in a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from canary_mlflow.commands.shared import store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.shown import echo

if TYPE_CHECKING:
    import sqlalchemy as sa


@click.group(epilog=EXIT_CODES)
def db() -> None:
    """Manage ledger and triggers in the registry's database."""


@db.command()
@click.option("--guard", "guards", multiple=True, metavar="ALIAS[=MODELS]", help="For example champion=prod-*.")
@click.option("--operator", "operators", multiple=True, metavar="NAME", help="Who may bless, override and roll back.")
@click.option("--server-role", default="", metavar="ROLE", help="PostgreSQL: the role of the server.")
@store_option
def install(guards: tuple[str, ...], operators: tuple[str, ...], server_role: str, tracking_uri: str | None) -> None:
    """Create, repair or change the ledger's tables and triggers. On PostgreSQL: as the tables' owner.

    Guards champion and anchor of every model that the ledger has a row about; --guard adds an alias of those models, or
    of every model whose name matches MODELS (* for all). Without --guard and --operator the settings stay; at first
    nobody is named.
    """
    from canary_mlflow.ledger.install import install as put
    from canary_mlflow.ledger.install import parse_guarded

    engine = database(tracking_uri)
    put(engine, [parse_guarded(text) for text in guards] or None, operators or None, server_role)
    show(engine)


@db.command(epilog=EXIT_CODES)
@click.option("--server-role", default="", metavar="ROLE", help="PostgreSQL: the role of the server.")
@store_option
def upgrade(server_role: str, tracking_uri: str | None) -> None:
    """Run `mlflow db upgrade` on a guarded database, all or nothing. Stop servers and runs first.

    One transaction removes the triggers, upgrades and puts them back. On PostgreSQL: as the tables' owner.
    """
    from canary_mlflow.registry.guard.migrations import upgrade as migrate

    engine = database(tracking_uri)
    before, after = migrate(engine, server_role)
    echo(f"schema {before} → {after}" if before != after else f"schema {after}: nothing to migrate")
    show(engine, needed=False)


@db.command(epilog=EXIT_CODES)
@click.option("--reason", required=True, help="Why; kept in the ledger.")
@store_option
def uninstall(reason: str, tracking_uri: str | None) -> None:
    """Remove the triggers: stock MLflow moves every alias again. The ledger stays, with a row about it.

    The row is signed if this account has a signing key. `canary db install` puts the triggers back.
    """
    from canary_mlflow.ledger.install import uninstall as remove
    from canary_mlflow.ledger.keys import PRIVATE, key_folder, load_signer
    from canary_mlflow.registry.actors import account, given

    folder, why = key_folder(), given(reason, "why the guard goes; it is kept in the ledger")
    signer = load_signer(folder) if (folder / PRIVATE).exists() else None
    row = remove(database(tracking_uri), signer, account(), why)
    said = f"row {row.seq} of the ledger says so" if row else f"no row says so: no signing key in {folder}"
    echo(f"The triggers are gone; {said}.")


@db.command()
@store_option
def status(tracking_uri: str | None) -> None:
    """Show what is guarded, who may override, and whether the triggers are in place."""
    show(database(tracking_uri))


def database(uri: str | None) -> sa.Engine:
    """The database itself. Raises UsageError for a tracking server, which does not give access to it."""
    import sqlalchemy as sa

    from canary_mlflow.errors import UsageError
    from canary_mlflow.ledger.uris import guarded_uri, is_guarded, plain_uri
    from canary_mlflow.mlflow_internals import require_guard
    from canary_mlflow.tracking.stores.store import resolve

    require_guard("canary db")
    found = plain_uri(uri) if uri else resolve(None)
    if not is_guarded(guarded_uri(found)):
        raise UsageError(
            f"--tracking-uri {found}: no SQLite or PostgreSQL database; expected the database itself, such as "
            "postgresql://owner@host/mlflow; a server cannot change its own triggers"
        )
    return sa.create_engine(resolve(found), poolclass=sa.pool.NullPool)


def show(engine: sa.Engine, *, needed: bool = True) -> None:
    """Print the state of the database's guard. Raises StoreError if there is no ledger and one is `needed`."""
    from canary_mlflow.errors import StoreError
    from canary_mlflow.ledger.install import installed, missing_indexes, missing_triggers, settings

    shown = engine.url.render_as_string(hide_password=True)
    with engine.connect() as connection:
        if not installed(connection) and not needed:
            echo(shown)
            echo("  no ledger; canary db install makes it")
            return
        if not installed(connection):
            raise StoreError(f"{shown}: no ledger there; expected one; canary db install")
        guarded, operators = settings(connection)
        missing, slow = missing_triggers(connection), missing_indexes(connection)
    echo(shown)
    for one in guarded:
        echo(f"  guarded    {one.alias} of {one.models or 'every model that the ledger has a row about'}")
    echo(f"  operators  {', '.join(operators) or 'nobody is named: whoever may write the database'}")
    echo(f"  triggers   {'missing: ' + ', '.join(missing) if missing else 'in place'}")
    if slow:
        echo(f"  indexes    missing: {', '.join(slow)}; canary db upgrade adds them")
