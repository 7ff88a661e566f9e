"""`mlflow server --app-name canary` and `canary-auth`, which also asks who is there. Imports MLflow when called."""

from __future__ import annotations

from typing import Any


def create_app() -> Any:
    """MLflow's own app with our routes; its users are not known."""
    from mlflow.server import app

    from canary_mlflow.pages.blueprint import add_pages
    from canary_mlflow.server.routes import add_routes

    add_routes(app, authenticated=False)
    add_pages(app)
    return served(app)


def create_auth_app() -> Any:
    """The same behind MLflow's basic authentication."""
    from mlflow.server import app, auth

    from canary_mlflow.pages.blueprint import add_pages
    from canary_mlflow.server.access import add_validators, readers
    from canary_mlflow.server.routes import add_routes

    add_routes(app, authenticated=True)
    add_pages(app, readers(auth))
    add_validators(auth)
    return auth.create_app(app)


def served(app: Any) -> Any:
    """What the program that serves expects: uvicorn an ASGI app, the others Flask's."""
    from mlflow.environment_variables import _MLFLOW_SGI_NAME
    from mlflow.server.fastapi_app import create_fastapi_app

    return create_fastapi_app(app) if _MLFLOW_SGI_NAME.get() == "uvicorn" else app
