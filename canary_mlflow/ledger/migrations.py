"""MLflow's own migrations, refused on a guarded database before they begin, in every process that has this package.

`mlflow db upgrade` does not expect triggers, and MLflow also migrates a database that lacks tables when it opens it.
Nothing in a database can stop Alembic before its first step (docs/guard.md, "Upgrading MLflow"), so this module wraps
the one function that both use.
"""

from __future__ import annotations

import functools
from typing import Any

MODULE, NAME = "mlflow.store.db.utils", "_upgrade_db"


def watch() -> None:
    """Wrap that function now, or once MLflow loads its module: MLflow may be half imported."""
    from mlflow.utils.import_hooks import register_post_import_hook

    register_post_import_hook(stand_before, MODULE)


def stand_before(module: Any) -> None:
    """Wrap MLflow's function with the check, once."""
    original = getattr(module, NAME, None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def upgrade(engine: Any) -> Any:
        refuse_guarded(engine, module)
        return original(engine)

    setattr(module, NAME, upgrade)


def refuse_guarded(engine: Any, module: Any) -> None:
    """Raise, in one sentence, if a database with our triggers is about to be migrated."""
    import click
    import sqlalchemy as sa
    from mlflow.exceptions import MlflowException

    from canary_mlflow.ledger.install import DIALECTS, installed, missing_triggers
    from canary_mlflow.ledger.triggers import sources

    dialect = engine.dialect.name
    if dialect not in DIALECTS:
        return
    with engine.connect() as connection:
        if not installed(connection) or len(missing_triggers(connection)) == len(sources(dialect)):
            return
        found = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    if found == module._get_latest_schema_revision():
        return
    shown = engine.url.render_as_string(hide_password=True)
    text = (
        "canary guard: an older MLflow made the tables of this guarded database; stop everything that uses it, then "
        f"run: canary db upgrade --tracking-uri {shown}"
    )
    command = click.get_current_context(silent=True)
    if command and command.command.callback and command.command.callback.__module__ == "mlflow.db":
        raise click.ClickException(text)
    raise MlflowException(text)
