"""What a request for a page asks of which databases, who may see what, and how it is answered: in HTML or in JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from flask import current_app, g, request

from canary_mlflow.errors import Refused, UsageError
from canary_mlflow.ledger.uris import plain_uri
from canary_mlflow.registry.guard.origin import behind_server
from canary_mlflow.registry.plugin import SERVER_BACKEND, SERVER_REGISTRY
from canary_mlflow.shown import finalized
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.stores.places import local_folder
from canary_mlflow.tracking.stores.read_only import reading

if TYPE_CHECKING:
    from flask import Response
    from jinja2 import Environment

READERS, ENVIRONMENT, OPENED = "CANARY_READERS", "CANARY_TEMPLATES", "canary_databases"


def tracking_uri() -> str:
    """The URI of the runs' database, as `mlflow server` gives it to its workers."""
    return os.environ[SERVER_BACKEND]


def runs_database() -> sa.Connection:
    """This request's connection to the runs' database, which can only read."""
    return _opened(tracking_uri())


def registry_database() -> sa.Connection:
    """The same to the database of models, aliases and ledger."""
    return _opened(plain_uri(os.environ.get(SERVER_REGISTRY) or tracking_uri()))


def _opened(uri: str) -> sa.Connection:
    stack, known = g.setdefault(OPENED, (ExitStack(), {}))
    if uri not in known:
        known[uri] = stack.enter_context(reading(uri))
    found: sa.Connection = known[uri]
    return found


def close_databases(error: BaseException | None = None) -> None:
    """Give this request's connections back."""
    stack, _ = g.pop(OPENED, (ExitStack(), {}))
    stack.close()


@dataclass(frozen=True, kw_only=True)
class Readers:
    """Who may see what; without users, everybody may see everything."""

    model: Callable[[str], bool] = lambda name: True
    experiment: Callable[[str], bool] = lambda number: True


def readers() -> Readers:
    """The current app's `Readers`."""
    found: Readers = current_app.config[READERS]
    return found


def readable(runs: Sequence[RunFacts]) -> Sequence[RunFacts]:
    """The same runs. Raises Refused if the reader may not see one of them."""
    for one in runs:
        if not readers().experiment(one.experiment):
            raise Refused(f"run {one.run_id}: in an experiment that you may not read")
    return runs


def folder_of(run: RunFacts) -> Path | None:
    """The folder of a run's artifacts; None if this server cannot read it."""
    return local_folder(behind_server(run.artifacts)) if run.artifacts else None


def argument(name: str, most: int = 256) -> str:
    """A query parameter. Raises UsageError."""
    found = request.args.get(name, "")
    if not found or len(found) > most or "\x00" in found:
        raise UsageError(f"{name}: {'missing' if not found else 'no such name'}; expected ?{name}=…; see the overview")
    return found


def whole_number(name: str) -> int | None:
    """An optional query parameter; None if it is missing. Raises UsageError."""
    text = request.args.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise UsageError(f"{name}: no whole number; expected one, or leave it out")
    return int(text)


def rendered(template: str, **values: Any) -> str:
    """The page, with values escaped as HTML and control characters written out. Flask's `render_template` only has the
    `finalize` of the whole app, which is MLflow's."""
    made: Environment | None = current_app.config.get(ENVIRONMENT)
    if made is None:
        from jinja2 import ChoiceLoader, PackageLoader

        ours = PackageLoader("canary_mlflow.reports")  # for the verdict card, which the HTML report shows too
        loader = ChoiceLoader([one for one in (current_app.jinja_env.loader, ours) if one is not None])
        made = current_app.config[ENVIRONMENT] = current_app.jinja_env.overlay(finalize=finalized, loader=loader)
    current_app.update_template_context(values)
    return made.get_template(template).render(values)


def as_answer(value: Mapping[str, Any]) -> Response:
    """A JSON response without NaN and without blanks."""
    return current_app.response_class(
        json.dumps(value, allow_nan=False, separators=(",", ":")), mimetype="application/json"
    )
