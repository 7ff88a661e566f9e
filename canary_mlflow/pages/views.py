"""The pages themselves: each route reads what it shows and hands it to its template, or answers in JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import Refused, UsageError
from canary_mlflow.pages.answers import answers_of
from canary_mlflow.pages.curves import as_json, champion_bands, curves
from canary_mlflow.pages.database import registry_uri, tracking_uri
from canary_mlflow.pages.facts import read_facts
from canary_mlflow.pages.finding import MOST, find
from canary_mlflow.pages.history import read_history
from canary_mlflow.pages.overview import read_overview
from canary_mlflow.pages.rendering import rendered
from canary_mlflow.pages.requests import argument, as_answer, readers, whole_number
from canary_mlflow.pages.run import RunPage, find_run, read_run
from canary_mlflow.pages.session import ASKED, SIDES, SessionPage, curves_of, read_page
from canary_mlflow.pages.verdict import judged, read_ledger_page, read_session_page
from canary_mlflow.reports import causes, wording
from canary_mlflow.reports.card import card_of
from canary_mlflow.reports.decision import RunWarning
from canary_mlflow.reports.panels import PANELS, target_of
from canary_mlflow.tracking.facts import RunFacts
from canary_mlflow.tracking.read_only import reading

if TYPE_CHECKING:
    from flask import Response


def may_see(page: RunPage) -> RunPage:
    """The page, unless it is about what the reader may not see. Raises Refused."""
    if not readers().experiment(page.run.experiment):
        raise Refused(f"run {page.run.run_id}: in an experiment that you may not read")
    return page


def overview() -> str:
    """The first page."""
    asked = readers()
    found = read_overview(tracking_uri(), registry_uri(), asked.model, asked.experiment)
    return rendered("canary/overview.html", page=found)


def run() -> str:
    """A run."""
    page = may_see(read_run(tracking_uri(), registry_uri(), argument("id", 64)))
    targets = {panel.title: target_of(panel, page.params) for panel in PANELS}
    return rendered("canary/run.html", page=page, run=page.run, panels=PANELS, targets=targets)


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


def session() -> Any:
    """What somebody asks for by ?id=: a session with all its runs, or the page of a model."""
    word = argument("id", MOST)
    place = find(tracking_uri(), registry_uri(), word)
    if place.head is None:
        from flask import redirect, url_for

        return redirect(url_for("canary_pages.model", name=place.model))
    heads = readable([place.head])
    page = read_page(tracking_uri(), registry_uri(), heads)
    found = judged(registry_uri(), place.head)
    if found is not None and not readers().model(found[1].model):
        found = None
    champion = read_reference(page)
    return rendered(
        "canary/session.html",
        page=page,
        asked=place.run,
        query=[("id", place.head.run_id)],
        row=None if found is None else found[0],
        card=None if found is None else card_of(found[1], then=found[0] is not None),
        warned=causes.of_warnings(warnings_of(page)),
        answers=answers_of([(one.name, one.run) for one in page.runs], champion),
    )


def find_session(word: str) -> Any:
    """The same as a part of the address, to be sent to somebody."""
    from flask import redirect, url_for

    if len(word) > MOST:
        raise UsageError(f"an address of {len(word)} characters; expected an id or a name; see the overview")
    return redirect(url_for("canary_pages.session", id=word))


def compare() -> str:
    """Two to six runs or sessions in one chart each: ?a=…&b=…"""
    page, query = compared()
    answers = answers_of([(one.name, one.run) for one in page.runs], [])
    warned = causes.of_warnings(warnings_of(page))
    none: dict[str, Any] = {"asked": "", "row": None, "card": None}
    return rendered("canary/session.html", page=page, query=query, warned=warned, answers=answers, **none)


def compared(*, refresh: bool = False) -> tuple[SessionPage, list[tuple[str, str]]]:
    """What ?a=…&b=… name, beside each other. Raises UsageError, NoSuchRun, Refused."""
    from flask import request

    asked = [(name, argument(name, MOST)) for name in SIDES if request.args.get(name)]
    if len(asked) < 2:
        raise UsageError(
            f"found {len(asked)} to compare; expected two to six: ?a=…&b=…, runs, sessions or MODEL/VERSION"
        )
    heads = []
    for name, word in asked:
        place = find(tracking_uri(), registry_uri(), word)
        if place.head is None:
            raise UsageError(f"{name}: {word!r} is a model; expected a run, a session, or MODEL/VERSION")
        heads.append(place.head)
    return read_page(tracking_uri(), registry_uri(), readable(heads), compare=True, refresh=refresh), asked


def session_json() -> Response:
    """The curves of a session's runs (?id=), or of what is compared (?a=…&b=…), ranked; ?after=STEP, ?names=a,b."""
    from flask import request

    after, names = whole_number("after"), [one for one in request.args.get("names", "").split(",") if one][:ASKED]
    if request.args.get("id"):
        place = find(tracking_uri(), registry_uri(), argument("id", MOST))
        if place.head is None:
            raise UsageError("id: a model; expected a run, a session or MODEL/VERSION")
        page = read_page(tracking_uri(), registry_uri(), readable([place.head]), refresh=True)
    else:
        page, _ = compared(refresh=True)
    with reading(tracking_uri()) as connection:
        return as_answer(curves_of(connection, tracking_uri(), page, names, after))


def readable(heads: list[RunFacts]) -> list[RunFacts]:
    """They, unless one is about what the reader may not see. Raises Refused."""
    for one in heads:
        if not readers().experiment(one.experiment):
            raise Refused(f"run {one.run_id}: in an experiment that you may not read")
    return heads


def warnings_of(page: SessionPage) -> list[RunWarning]:
    """What the watch said of its runs."""
    return [RunWarning(run=shown.name, warning=one) for shown in page.runs for one in shown.run.warnings]


def read_reference(page: SessionPage) -> list[RunFacts]:
    """The champion's runs."""
    with reading(tracking_uri()) as connection:
        return list(read_facts(connection, list(page.reference.run_ids), tags=(), latest=()).values())


def verdict() -> str:
    """A ledger row (?row=), or the verdict on a session (?session=), which has no row where it left no version."""
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
    """A model's history."""
    name = argument("name")
    if not readers().model(name):
        raise Refused(f"model {name!r}: one that you may not read")
    return rendered("canary/model.html", page=read_history(registry_uri(), name))


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
    "/session": session,
    "/session.json": session_json,
    "/compare": compare,
    "/verdict": verdict,
    "/model": model,
    "/model.json": model_json,
}
