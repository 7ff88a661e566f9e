"""The routes under /canary: pages as HTML, their numbers as JSON, nothing that writes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import CanaryError, NoSuchModel, NoSuchRun, NoSuchVersion, Refused, UsageError
from canary_mlflow.pages.curves import as_json, champion_bands, curves
from canary_mlflow.pages.database import reading, registry_uri, tracking_uri
from canary_mlflow.pages.facts import read_facts
from canary_mlflow.pages.history import read_history
from canary_mlflow.pages.overview import read_overview
from canary_mlflow.pages.run import RunPage, find_run, read_run
from canary_mlflow.pages.verdict import read_ledger_page, read_session_page
from canary_mlflow.reports import wording
from canary_mlflow.reports.panels import PANELS, target_of
from canary_mlflow.reports.times import ago, duration, iso, moment
from canary_mlflow.reports.tones import tone

if TYPE_CHECKING:
    from flask import Blueprint, Flask, Response

STATIC_PREFIX = "_MLFLOW_STATIC_PREFIX"
READERS = "CANARY_READERS"
NOT_FOUND = (NoSuchRun, NoSuchModel, NoSuchVersion)
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


@dataclass(frozen=True, kw_only=True)
class Readers:
    """Who may see what; without users, everybody everything."""

    model: Callable[[str], bool] = lambda name: True
    experiment: Callable[[str], bool] = lambda number: True


def prefix() -> str:
    """Where the pages are, under the server's own prefix if it has one."""
    return f"{os.environ.get(STATIC_PREFIX, '').rstrip('/')}/canary"


def paths() -> list[str]:
    """Every path that answers, the assets' included."""
    static = Path(__file__).parent / "static"
    assets = [file.relative_to(static).as_posix() for file in static.rglob("*") if file.is_file()]
    return [*(prefix() + path for path in ("", *ROUTES)), *(f"{prefix()}/static/{name}" for name in assets)]


def add_pages(app: Flask, readers: Readers | None = None) -> None:
    """Put the pages on MLflow's app, once."""
    app.config[READERS] = readers or Readers()
    if "canary_pages" not in app.blueprints:
        app.register_blueprint(blueprint(), url_prefix=prefix())


def blueprint() -> Blueprint:
    """All routes, with what their templates may call."""
    from flask import Blueprint

    made = Blueprint("canary_pages", __name__, template_folder="templates", static_folder="static")
    for path, view in ROUTES.items():
        made.add_url_rule(path, view.__name__, view, methods=["GET"])
    made.add_url_rule("", "front_door", overview, methods=["GET"])
    made.register_error_handler(CanaryError, sorry)
    made.after_request(guarded)
    made.context_processor(helpers)
    return made


def helpers() -> dict[str, Any]:
    """What templates may call."""
    now = time.time() * 1000
    words: dict[str, Any] = {"moment": moment, "duration": duration, "iso": iso, "tone": tone}
    return {**words, "ago": lambda at: ago(at, now), "now": now, "home": prefix().removesuffix("canary")}


def guarded(response: Response) -> Response:
    """No script, style or request but our own; nothing kept in a cache but the assets."""
    for name, value in HEADERS.items():
        response.headers[name] = value
    if response.mimetype in ("text/html", "application/json"):
        response.headers["Cache-Control"] = "no-store"
    return response


def sorry(error: CanaryError) -> Any:
    """An expected error as a sentence, in the form that was asked for."""
    from flask import render_template, request

    code = 404 if isinstance(error, NOT_FOUND) else 403 if isinstance(error, Refused) else 503
    code = 400 if code == 503 and isinstance(error, UsageError) else code
    text = " ".join(str(error).split())
    if request.path.endswith(".json"):
        return as_answer({"error": code, "message": text}), code
    return render_template("canary/sorry.html", text=text, code=code), code


def as_answer(value: Mapping[str, Any]) -> Response:
    """JSON without NaN, as short as it can be."""
    from flask import current_app

    return current_app.response_class(
        json.dumps(value, allow_nan=False, separators=(",", ":")), mimetype="application/json"
    )


def argument(name: str, most: int = 256) -> str:
    """A query parameter. Raises UsageError."""
    from flask import request

    found = request.args.get(name, "")
    if not found or len(found) > most or "\x00" in found:
        raise UsageError(f"{name}: {'missing' if not found else 'no such name'}; expected ?{name}=…; see the overview")
    return found


def whole_number(name: str) -> int | None:
    """A query parameter that may be missing. Raises UsageError."""
    from flask import request

    text = request.args.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise UsageError(f"{name}: no whole number; expected one, or leave it out")
    return int(text)


def readers() -> Readers:
    """Who may see what, of this app."""
    from flask import current_app

    found: Readers = current_app.config[READERS]
    return found


def may_see(page: RunPage) -> RunPage:
    """The page, unless it is about what the reader may not see. Raises Refused."""
    if not readers().experiment(page.run.experiment):
        raise Refused(f"run {page.run.run_id}: in an experiment that you may not read")
    return page


def overview() -> str:
    """The first page."""
    from flask import render_template

    asked = readers()
    found = read_overview(tracking_uri(), registry_uri(), asked.model, asked.experiment)
    return render_template("canary/overview.html", page=found)


def run() -> str:
    """A run."""
    from flask import render_template

    page = may_see(read_run(tracking_uri(), registry_uri(), argument("id", 64)))
    targets = {panel.title: target_of(panel, page.params) for panel in PANELS}
    return render_template("canary/run.html", page=page, run=page.run, panels=PANELS, targets=targets)


def run_json() -> Response:
    """The curves of a run, or what is new since ?after=STEP: one bulk read."""
    run_id, after = argument("id", 64), whole_number("after")
    with reading(tracking_uri()) as connection:
        found = find_run(connection, run_id)
        if not readers().experiment(found.experiment):
            raise Refused(f"run {run_id}: in an experiment that you may not read")
        drawn = curves(connection, found, after)
    marks = [{"step": one.step, "stream": one.stream, "level": one.level.name} for one in found.warnings]
    return as_answer({"running": found.running, "warnings": marks, **drawn})


def band_json() -> Response:
    """The champion's band behind a run's curves."""
    page = may_see(read_run(tracking_uri(), registry_uri(), argument("id", 64)))
    bands = champion_bands(tracking_uri(), page.champion.run_ids) if page.champion.run_ids else {}
    series = {name: as_json(band.steps, band.low, band.high) for name, band in bands.items()}
    return as_answer({"said": page.champion.said, "version": page.champion.version, "series": series})


def verdict() -> str:
    """A ledger row (?row=), or the verdict on a session (?session=), which has no row where it left no version."""
    from flask import render_template

    row = whole_number("row")
    if row is not None:
        page = read_ledger_page(tracking_uri(), registry_uri(), row, readers().model)
    else:
        page = read_session_page(tracking_uri(), registry_uri(), argument("session", 64), readers().model)
        with reading(tracking_uri()) as connection:
            own = read_facts(connection, [argument("session", 64)], latest=())
        if not all(readers().experiment(one.experiment) for one in own.values()):
            raise Refused("session: in an experiment that you may not read")
    found = page.decision
    told = {} if found is None else {
        "title": wording.title(found),
        "reason": wording.reason(found),
        "note": wording.evidence_note(found),
        "hard": wording.hard_gates(found),
        "obstacles": wording.obstacles(found),
        "not_judged": wording.not_judged(found),
    }  # fmt: skip
    return render_template("canary/verdict.html", page=page, decision=found, words=wording.WORDS, **told)


def model() -> str:
    """A model's history."""
    from flask import render_template

    name = argument("name")
    if not readers().model(name):
        raise Refused(f"model {name!r}: one that you may not read")
    return render_template("canary/model.html", page=read_history(registry_uri(), name))


def model_json() -> Response:
    """The metric trends of a model."""
    name = argument("name")
    if not readers().model(name):
        raise Refused(f"model {name!r}: one that you may not read")
    found = read_history(registry_uri(), name)
    trends = [{"name": one.name, "unit": one.unit, "points": list(one.points)} for one in found.trends]
    champions = [reign.entry.row.version for reign in found.reigns]
    return as_answer({"champions": champions, "trends": trends})


ROUTES: dict[str, Callable[[], Any]] = {
    "/": overview,
    "/run": run,
    "/run.json": run_json,
    "/band.json": band_json,
    "/verdict": verdict,
    "/model": model,
    "/model.json": model_json,
}
