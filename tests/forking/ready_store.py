"""A store that is made anew is a copy of one that MLflow made: its migrations take a second of CPU each time.

Which of them is the newest is looked up once: MLflow reads all seventy whenever it opens a store.

Where CANARY_TEST_STORES is `made`, and in processes that do not fork, MLflow makes each of them.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "CANARY_TEST_STORES"
MODULE, NAME = "mlflow.store.db.utils", "_initialize_tables"


def install(folder: Path) -> None:
    """Have MLflow copy in this process, once it loads its databases; the store to copy is kept in `folder`."""
    from mlflow.utils.import_hooks import register_post_import_hook

    register_post_import_hook(lambda module: put_before(module, folder), MODULE)


def put_before(module: ModuleType, folder: Path) -> None:
    made = getattr(module, NAME)

    def initialize(engine: Any) -> None:
        if os.environ.get(VARIABLE) == "made" or not is_new(engine):
            return made(engine)
        ready = folder / "ready.db"
        make_once(ready, made)
        with closing(sqlite3.connect(ready)) as source, closing(sqlite3.connect(engine.url.database)) as new:
            source.backup(new)

    setattr(module, NAME, initialize)
    module._get_latest_schema_revision = kept_revision(module)


def kept_revision(module: ModuleType) -> Callable[[], str]:
    """MLflow's newest revision; that of other migrations, which a test may put in their place, is looked up."""
    look_up, of_mlflow = module._get_latest_schema_revision, module._get_alembic_config
    newest = look_up()
    return lambda: newest if module._get_alembic_config is of_mlflow else look_up()


def is_new(engine: Any) -> bool:
    """Whether it is a SQLite file without a table."""
    import sqlalchemy as sa

    if engine.dialect.name != "sqlite" or engine.url.database in (None, "", ":memory:"):
        return False
    return not sa.inspect(engine).get_table_names()


def make_once(ready: Path, made: Any) -> None:
    """The store to copy, by whichever process needs it first."""
    import sqlalchemy as sa
    from filelock import FileLock

    with FileLock(f"{ready}.lock"):
        if ready.exists():
            return
        draft = ready.with_suffix(".draft")
        engine = sa.create_engine(f"sqlite:///{draft}")
        made(engine)
        engine.dispose()
        draft.replace(ready)
