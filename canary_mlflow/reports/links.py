"""Where in MLflow's UI, and on our own pages, something can be seen."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from urllib.parse import quote

from canary_mlflow.reports.decision import Decision, Question


@dataclass(frozen=True, kw_only=True)
class Link:
    """Where to look. `command`: what serves that address, '' if a server does. `needs`: what that server must be."""

    name: str
    address: str
    command: str = ""
    needs: str = ""


def links_of(decision: Decision) -> tuple[Link, ...]:
    """Our own page, and MLflow's if the store is on a server, which may not have our pages."""
    store, own = decision.store, page_of(decision)
    if store.startswith(("http://", "https://")):
        address, needs = store.rstrip("/"), "a server with --app-name canary"
        found = [Link(name="in MLflow", address=f"{address}{decision.page}")] if decision.page else []
        return (*found, Link(name="page", address=f"{address}{own}", needs=needs)) if own else tuple(found)
    page = own or decision.page
    if not store or not page:
        return ()
    command = f"canary ui --tracking-uri {shlex.quote(store)}"
    return (Link(name="page" if own else "in MLflow", address=f"http://127.0.0.1:5000{page}", command=command),)


def page_of(decision: Decision) -> str:
    """The path, below the server's address, of our page that shows what was judged; '' if no page does."""
    if not decision.session_id or decision.question is Question.FILES:
        return ""
    return f"/canary/session/{quote(decision.session_id, safe='')}"


def version_page(model: str, version: str) -> str:
    """The path at which MLflow's UI shows a model version; its router reads the fragment."""
    return f"/#/models/{quote(model, safe='')}/versions/{version}"


def run_page(experiment_id: str, run_id: str) -> str:
    """The path at which MLflow's UI shows a run."""
    return f"/#/experiments/{experiment_id}/runs/{run_id}"
