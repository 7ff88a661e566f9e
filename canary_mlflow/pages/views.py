"""The routes of the pages: each reads what it shows and passes it to its template, or answers in JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from canary_mlflow.errors import Refused, UsageError
from canary_mlflow.pages.curves import as_json
from canary_mlflow.pages.database import registry_uri, tracking_uri
from canary_mlflow.pages.facts import EXPERIMENTS, find_run, read_facts
from canary_mlflow.pages.history import read_history, without_row
from canary_mlflow.pages.index import NOT_JUDGED, ORDERS, RUNNING, Asked, read_index
from canary_mlflow.pages.models import names_of_models, with_words
from canary_mlflow.pages.overview import read_overview
from canary_mlflow.pages.rendering import rendered
from canary_mlflow.pages.requests import argument, as_answer, readers, whole_number
from canary_mlflow.pages.run import RunPage, curves, read_run
from canary_mlflow.pages.session_views import SESSION_ROUTES
from canary_mlflow.pages.strips import strips_of
from canary_mlflow.pages.verdict import read_ledger_page, read_session_page
from canary_mlflow.policies import policy_names
from canary_mlflow.reports import causes, wording
from canary_mlflow.reports.card import card_of
from canary_mlflow.reports.panels import PANELS, target_of
from canary_mlflow.tracking.describing.schema import name_of_key
from canary_mlflow.tracking.stores.read_only import reading
from gates.model.verdict import Outcome

if TYPE_CHECKING:
    from flask import Response


def may_see(page: RunPage) -> RunPage:
    """The same page. Raises Refused if the reader may not see its run."""
    if not readers().experiment(page.run.experiment):
        raise Refused(f"run {page.run.run_id}: in an experiment that you may not read")
    return page


def overview() -> str:
    """The first page."""
    asked = readers()
    found = read_overview(tracking_uri(), registry_uri(), asked.model, asked.experiment)
    return rendered("canary/overview.html", page=found)


def sessions() -> str:
    """All sessions or runs, a page at a time."""
    from flask import url_for

    asked = asked_index()
    found = read_index(tracking_uri(), asked, readable_experiments(), model_names())
    with reading(registry_uri()) as connection:
        heads = with_words(connection, [line.head for line in found.lines])
    found = replace(found, lines=[replace(line, head=heads[line.head.run_id]) for line in found.lines])
    kept = {key: value for key, value in vars(asked).items() if value and key not in ("skip", "warned")}
    kept |= {"warned": "1"} if asked.warned else {}
    page = partial(url_for, "canary_pages.sessions", **kept)
    tiers = sorted({*policy_names(), *filter(None, (asked.tier,))})
    return rendered(
        "canary/sessions.html", page=found, first=page(), further=page(skip=found.further), tiers=tiers,
        verdicts=(*(word.value for word in Outcome), NOT_JUDGED, RUNNING),
    )  # fmt: skip


def asked_index() -> Asked:
    """What the query parameters ask of the index. Raises UsageError."""
    from flask import request

    given = {name: request.args.get(name, "") for name in ("what", "q", "verdict", "model", "tier", "sort")}
    for name, value in given.items():
        if len(value) > 200 or "\x00" in value:
            raise UsageError(f"{name}: {len(value)} characters; expected at most 200, of text")
    for name, known in (("what", ("sessions", "runs")), ("sort", tuple(ORDERS))):
        if given[name] and given[name] not in known:
            raise UsageError(f"{name}: found {given[name]!r}; expected one of {', '.join(known)}")
    warned, skip = request.args.get("warned") == "1", whole_number("skip") or 0
    return Asked(**{name: value.strip() for name, value in given.items() if value.strip()}, warned=warned, skip=skip)


def readable_experiments() -> list[str] | None:
    """The experiments that the reader may see; None for all."""
    with reading(tracking_uri()) as connection:
        every = [str(one) for one in connection.execute(sa.select(EXPERIMENTS.c.experiment_id)).scalars()]
    may = [one for one in every if readers().experiment(one)]
    return None if len(may) == len(every) else may


def model_names() -> list[str]:
    """The models that the reader may see."""
    with reading(registry_uri()) as connection:
        return [name for name in names_of_models(connection) if readers().model(name)]


def run() -> str:
    """The page of a run."""
    page = may_see(read_run(tracking_uri(), registry_uri(), argument("id", 64)))
    targets = {panel.title: target_of(panel, page.params) for panel in PANELS}
    strips = strips_of({name_of_key(key) for key in page.run.latest})
    return rendered("canary/run.html", page=page, run=page.run, panels=PANELS, targets=targets, strips=strips)


def run_json() -> Response:
    """The curves of a run, or what is new since ?after=STEP: one bulk read. ?rough=1: some rows, at once."""
    run_id, after = argument("id", 64), whole_number("after")
    with reading(tracking_uri()) as connection:
        found = find_run(connection, run_id)
        if not readers().experiment(found.experiment):
            raise Refused(f"run {run_id}: in an experiment that you may not read")
        rough = whole_number("rough") == 1
        drawn = curves(connection, tracking_uri(), registry_uri(), found, after, rough=rough)
    marks = [{"step": one.step, "stream": one.stream, "level": one.level.name} for one in found.warnings]
    return as_answer({"running": found.running, "warnings": marks, **drawn})


def band_json() -> Response:
    """The champion's band behind a run's curves."""
    page = may_see(read_run(tracking_uri(), registry_uri(), argument("id", 64)))
    series = {name: as_json(*band.drawn()) for name, band in page.bands.items()}
    waits = page.run.running and bool(page.champion.run_ids) and not series
    return as_answer({"said": page.champion.said, "version": page.champion.version, "series": series, "waits": waits})


def verdict() -> str:
    """A ledger row (?row=), or the verdict on a session (?session=), which has no row if it left no version."""
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
        "card": card_of(found, then=page.row is not None),
        "note": wording.evidence_note(found),
        "hard": wording.hard_gates(found),
        "obstacles": wording.obstacles(found),
        "not_judged": wording.by_reason(wording.not_judged(found)),
        "warned": causes.of_warnings(found.warnings),
    }  # fmt: skip
    return rendered("canary/verdict.html", page=page, decision=found, words=wording.WORDS, **told)


def model() -> str:
    """The page of a model's history."""
    name = argument("name")
    if not readers().model(name):
        raise Refused(f"model {name!r}: one that you may not read")
    page = read_history(registry_uri(), name)
    others = [one for one in without_row(tracking_uri(), page) if readers().experiment(one.experiment)]
    return rendered("canary/model.html", page=page, others=others)


def model_json() -> Response:
    """The metric trends of a model over its verdicts, oldest first; `by_hand`: versions that a person made champion."""
    name = argument("name")
    if not readers().model(name):
        raise Refused(f"model {name!r}: one that you may not read")
    found = read_history(registry_uri(), name)
    trends = [{"name": one.name, "unit": one.unit, "points": list(one.points)} for one in found.trends]
    champions = [reign.entry.row.version for reign in found.reigns]
    verdicts = [{"row": one.row.seq, "version": one.row.version, "word": one.row.word} for one in found.verdicts]
    by_hand = list(found.made_by_hand)
    return as_answer({"champions": champions, "by_hand": by_hand, "verdicts": verdicts, "trends": trends})


ROUTES: dict[str, Callable[[], Any]] = {
    "/": overview,
    "/sessions": sessions,
    "/run": run,
    "/run.json": run_json,
    "/band.json": band_json,
    **SESSION_ROUTES,
    "/verdict": verdict,
    "/model": model,
    "/model.json": model_json,
}
