"""The apps `canary` and `canary-auth` of `mlflow server --app-name`; the latter knows its users. Imports MLflow when
called."""

from __future__ import annotations

from typing import Any


def create_app() -> Any:
    """MLflow's app with our routes, without authentication."""
    from mlflow.server import app

    from canary_mlflow.pages.blueprint import add_pages
    from canary_mlflow.server.routes import add_routes

    add_routes(app, authenticated=False)
    add_pages(app)
    return served(app)


def create_auth_app() -> Any:
    """MLflow's app with our routes, behind MLflow's basic authentication."""
    from mlflow.server import app, auth

    from canary_mlflow.pages.blueprint import add_pages
    from canary_mlflow.server.access import add_validators, readers
    from canary_mlflow.server.routes import add_routes

    add_routes(app, authenticated=True)
    add_pages(app, readers(auth))
    add_validators(auth)
    return auth.create_app(app)


def served(app: Any) -> Any:
    """The app as the server program expects it: ASGI for uvicorn, Flask's for others."""
    from mlflow.environment_variables import _MLFLOW_SGI_NAME
    from mlflow.server.fastapi_app import create_fastapi_app

    return create_fastapi_app(app) if _MLFLOW_SGI_NAME.get() == "uvicorn" else app
