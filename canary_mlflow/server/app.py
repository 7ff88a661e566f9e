"""The apps `canary` and `canary-auth` of `mlflow server --app-name`; the latter knows its users. Imports MLflow when
called."""

from __future__ import annotations

import os
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.mlflow_internals import require_guard
from canary_mlflow.shown import say

# MLflow's log-batch takes a second connection to the database while it holds one, and anyio runs 40 requests at once.
# Of the 15 connections that SQLAlchemy allows, 16 requests each hold one and wait 30 s for another.
CONNECTIONS = 2 * 40
CANNOT_START = 3  # to gunicorn (its WORKER_BOOT_ERROR), which starts a worker again after any other exit code


def create_app() -> Any:
    """MLflow's app with our routes, without authentication."""
    begin("canary")
    from mlflow.server import app

    from canary_mlflow.pages.blueprint import add_pages
    from canary_mlflow.server.routes import add_routes

    add_routes(app, authenticated=False)
    add_pages(app)
    return served(app)


def create_auth_app() -> Any:
    """MLflow's app with our routes, behind MLflow's basic authentication."""
    begin("canary-auth")
    from mlflow.server import app, auth

    from canary_mlflow.pages.blueprint import add_pages
    from canary_mlflow.server.access import add_validators, readers
    from canary_mlflow.server.routes import add_routes

    add_routes(app, authenticated=True)
    add_pages(app, readers(auth))
    add_validators(auth)
    return auth.create_app(app)


def begin(name: str) -> None:
    """Let every request have its connections, unless the operator says otherwise. They are closed when not needed.

    Where this MLflow is too old it says so in one line and exits."""
    try:
        require_guard(f"mlflow server --app-name {name}")
    except UsageError as error:
        say(str(error))
        raise SystemExit(CANNOT_START) from None
    os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW", str(CONNECTIONS))


def served(app: Any) -> Any:
    """The app as the server program expects it: ASGI for uvicorn, Flask's for others."""
    from mlflow.environment_variables import _MLFLOW_SGI_NAME
    from mlflow.server.fastapi_app import create_fastapi_app

    return create_fastapi_app(app) if _MLFLOW_SGI_NAME.get() == "uvicorn" else app
