"""The routes under /canary as one blueprint of MLflow's app: HTML and JSON, read-only."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from flask import Blueprint, request

from canary_mlflow.errors import CanaryError, NoSuchModel, NoSuchRun, NoSuchVersion, Refused, UsageError
from canary_mlflow.gates.model.wording import counted, figure
from canary_mlflow.pages import models, run, session_views, verdict
from canary_mlflow.pages.index import sessions
from canary_mlflow.pages.overview import overview
from canary_mlflow.pages.requests import READERS, Readers, as_answer, close_databases, rendered
from canary_mlflow.registry.judging.records import own_name
from canary_mlflow.reports.forest import x_of
from canary_mlflow.reports.formatting import ago, duration, iso, moment, tone
from canary_mlflow.server.answers import public
from canary_mlflow.shown import visible
from canary_mlflow.tracking.stores.read_only import refused

if TYPE_CHECKING:
    from flask import Blueprint, Flask, Response

ROUTES: dict[str, Callable[[], Any]] = {
    "/": overview,
    "/sessions": sessions,
    "/run": run.run,
    "/run.json": run.run_json,
    "/band.json": run.band_json,
    "/session": session_views.session,
    "/session.json": session_views.session_json,
    "/session.csv": session_views.session_csv,
    "/clock.json": session_views.clock_json,
    "/compare": session_views.compare,
    "/answers": session_views.answers,
    "/verdict": verdict.verdict,
    "/model": models.model,
    "/model.json": models.model_json,
}
STATIC_PREFIX = "_MLFLOW_STATIC_PREFIX"
NAMED = "/session/"  # followed by anything that names a session
NOT_FOUND = (NoSuchRun, NoSuchModel, NoSuchVersion)
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


def prefix() -> str:
    """The path of the pages, under the server's own prefix if it has one."""
    return f"{os.environ.get(STATIC_PREFIX, '').rstrip('/')}/canary"


def paths() -> list[str]:
    """Every path that answers, including those of the assets."""
    static = Path(__file__).parent / "static"
    assets = [file.relative_to(static).as_posix() for file in static.rglob("*") if file.is_file()]
    return [*(prefix() + path for path in ("", *ROUTES)), *(f"{prefix()}/static/{name}" for name in assets)]


def add_pages(app: Flask, readers: Readers | None = None) -> None:
    """Add the pages to MLflow's app, once."""
    app.config[READERS] = readers or Readers()
    if "canary_pages" not in app.blueprints:
        app.register_blueprint(blueprint(), url_prefix=prefix())


def blueprint() -> Blueprint:
    """All routes, with the functions that their templates may call."""
    made = Blueprint("canary_pages", __name__, template_folder="templates", static_folder="static")
    for path, view in ROUTES.items():
        made.add_url_rule(path, view.__name__, view, methods=["GET"])
    made.add_url_rule(f"{NAMED}<path:word>", "find_session", session_views.find_session, methods=["GET"])
    made.add_url_rule(NAMED, "no_session", ROUTES["/session"], methods=["GET"])
    made.add_url_rule("", "front_door", overview, methods=["GET"])
    made.register_error_handler(CanaryError, sorry)
    made.register_error_handler(sa.exc.SQLAlchemyError, lambda error: sorry(refused(error)))
    made.after_request(guarded)
    made.teardown_request(close_databases)
    made.context_processor(helpers)
    return made


def helpers() -> dict[str, Any]:
    """The functions and values that templates may use."""
    now = time.time() * 1000
    words: dict[str, Any] = {"moment": moment, "duration": duration, "iso": iso, "tone": tone, "x_of": x_of,
                             "figure": figure, "counted": counted, "own_name": own_name}  # fmt: skip
    return {**words, "ago": lambda at: ago(at, now), "now": now, "home": prefix().removesuffix("canary")}


def guarded(response: Response) -> Response:
    """The response with headers that allow only our own scripts, styles and requests, and caching only of assets."""
    for name, value in HEADERS.items():
        response.headers[name] = value
    if response.mimetype in ("text/html", "application/json"):
        response.headers["Cache-Control"] = "no-store"
        return packed(response)
    return response


def packed(response: Response) -> Response:
    """The response as gzip if the browser can read it: tables and curves shrink to a fraction."""
    response.headers["Vary"] = "Accept-Encoding"
    if request.accept_encodings["gzip"]:
        response.set_data(gzip.compress(response.get_data(), compresslevel=1))
        response.headers["Content-Encoding"] = "gzip"
    return response


def sorry(error: CanaryError) -> Any:
    """An expected error as a sentence, in the format that was asked for."""
    code = 404 if isinstance(error, NOT_FOUND) else 403 if isinstance(error, Refused) else 503
    code = 400 if code == 503 and isinstance(error, UsageError) else code
    text = visible(public(str(error)))
    if request.path.endswith(".json"):
        return as_answer({"error": code, "message": text}), code
    return rendered("canary/sorry.html", text=text, code=code), code
