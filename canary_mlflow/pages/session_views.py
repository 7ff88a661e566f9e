"""The routes of a session and of several compared: pages, curves, clocks, and CSV."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.errors import Refused, UsageError
from canary_mlflow.pages.answers import answers_of
from canary_mlflow.pages.clocks import clocks_of, middle
from canary_mlflow.pages.database import registry_uri, tracking_uri
from canary_mlflow.pages.earlier import earlier_than
from canary_mlflow.pages.facts import read_facts
from canary_mlflow.pages.finding import MOST, find
from canary_mlflow.pages.judging import gate_would_say
from canary_mlflow.pages.rendering import rendered
from canary_mlflow.pages.requests import argument, as_answer, readers, whole_number
from canary_mlflow.pages.session import ASKED, SIDES, SessionPage, curves_of, name_of, read_page
from canary_mlflow.pages.strips import strips_of
from canary_mlflow.pages.sweep import grid_of
from canary_mlflow.pages.tables import lines_of
from canary_mlflow.pages.verdict import decided_by, judged
from canary_mlflow.reports import causes
from canary_mlflow.reports.card import card_of
from canary_mlflow.reports.decision import RunWarning
from canary_mlflow.reports.panels import GIVEN
from canary_mlflow.tracking.describing.schema import name_of_key
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.stores.read_only import reading

if TYPE_CHECKING:
    from flask import Response


def session() -> Any:
    """The page for ?id=: a session with all its runs, or a model."""
    word = argument("id", MOST)
    place = find(tracking_uri(), registry_uri(), word)
    if place.head is None:
        from flask import redirect, url_for

        return redirect(url_for("canary_pages.model", name=place.model))
    heads = readable([place.head])
    found = judged(registry_uri(), place.head)
    if found is not None and not readers().model(found[1].model):
        found = None
    page = read_page(tracking_uri(), registry_uri(), heads, () if found is None else decided_by(found[1]))
    champion = read_reference(page)
    role = place.head.tags.get(tags.ROLE)
    whole = role == "session"
    earlier = earlier_than(tracking_uri(), registry_uri(), place.head) if whole else []
    return rendered(
        "canary/session.html",
        page=page,
        given=GIVEN,
        asked=place.run.run_id if place.run else "",
        query=[("id", place.head.run_id)],
        earlier=[one for one in earlier if readers().experiment(one[1].experiment)],
        grid=grid_of(tracking_uri(), place.head) if role == "sweep" else None,
        row=None if found is None else found[0],
        card=None if found is None else card_of(found[1], then=found[0] is not None),
        warned=causes.of_warnings(warnings_of(page)),
        strips=strips_of({name_of_key(key) for one in page.runs for key in one.run.latest}),
        answers=answers_of([(one.name, one.run) for one in page.runs], champion),
    )


def find_session(word: str) -> Any:
    """Redirect an address that can be shared, /session/WORD, to `session`."""
    from flask import redirect, url_for

    if len(word) > MOST:
        raise UsageError(f"an address of {len(word)} characters; expected an id or a name; see the overview")
    return redirect(url_for("canary_pages.session", id=word))


def compare() -> Any:
    """Two to six runs or sessions in common charts: ?a=…&b=…, or those chosen in the index: ?with=ID&with=ID."""
    from flask import redirect, request, url_for

    if chosen := request.args.getlist("with"):
        if not 2 <= len(chosen) <= len(SIDES):
            raise UsageError(f"{len(chosen)} chosen to compare; expected two to six")
        with reading(tracking_uri()) as connection:
            found = read_facts(connection, [one[:64] for one in chosen], tags=(), latest=()).values()
        oldest = [one.run_id for one in sorted(found, key=lambda one: one.started)]
        sides: dict[str, Any] = dict(zip(SIDES, oldest, strict=False))
        return redirect(url_for("canary_pages.compare", **sides))
    page, query = compared()
    answers = answers_of([(one.name, one.run) for one in page.runs], [])
    warned = causes.of_warnings(warnings_of(page))
    decision, why = None, ""
    if len(page.heads) == 2:
        labels = [f"{SIDES[side]}, {name_of(head)}" for side, head in enumerate(page.heads)]
        decision, why = gate_would_say(tracking_uri(), registry_uri(), page.heads, labels)
    return rendered(
        "canary/session.html",
        page=page,
        given=GIVEN,
        asked="",
        query=query,
        earlier=[],
        row=None,
        card=None if decision is None else card_of(decision),
        why=why,
        warned=warned,
        strips=strips_of({name_of_key(key) for one in page.runs for key in one.run.latest}),
        answers=answers,
    )


def compared(*, refresh: bool = False) -> tuple[SessionPage, list[tuple[str, str]]]:
    """The page that compares what ?a=…&b=… name. Raises UsageError, NoSuchRun, Refused."""
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
        heads.append(place.run or place.head)
    return read_page(tracking_uri(), registry_uri(), readable(heads), compare=True, refresh=refresh), asked


def session_json() -> Response:
    """The curves of a session's runs (?id=), or of what is compared (?a=…&b=…), ranked. ?names=a,b: only these series;
    ?after=STEP: only what is new; ?from=STEP&to=STEP: a stretch in full detail; ?rough=1: some rows, at once."""
    after, until = whole_number("after"), whole_number("to")
    if until is not None:
        after = whole_number("from") or 0
    page = asked_for()
    with reading(tracking_uri()) as connection:
        names, rough = names_asked(), whole_number("rough") == 1
        return as_answer(curves_of(connection, tracking_uri(), page, names, after, until, rough=rough))


def clock_json() -> Response:
    """The clock of each run, by id: when it was at which step. `reference`: the clock of the band."""
    page = asked_for()
    with reading(tracking_uri()) as connection:
        runs = clocks_of(connection, [one.run for one in page.runs])
        there = {run_id: runs[run_id] for run_id in page.reference.run_ids if run_id in runs}
        if not there:
            there = clocks_of(connection, list(read_facts(connection, page.reference.run_ids, tags=()).values()))
    return as_answer({"runs": runs, "reference": middle(there)})


def session_csv() -> Response:
    """Every recorded value of ?names=a,b."""
    from flask import current_app

    names, page = names_asked(), asked_for()
    if not names:
        raise UsageError("names: missing; expected the series, as in ?names=loss,kl")
    lines = lines_of(tracking_uri(), [(one.run.run_id, one.name) for one in page.runs], names)
    made = current_app.response_class(lines, mimetype="text/csv")
    made.headers["Content-Disposition"] = f'attachment; filename="canary-{page.heads[0].run_id[:8]}.csv"'
    return made


def asked_for() -> SessionPage:
    """The page whose curves were asked for. Raises UsageError, NoSuchRun, Refused."""
    from flask import request

    if not request.args.get("id"):
        return compared(refresh=True)[0]
    place = find(tracking_uri(), registry_uri(), argument("id", MOST))
    if place.head is None:
        raise UsageError("id: a model; expected a run, a session or MODEL/VERSION")
    found = None if place.head.running else judged(registry_uri(), place.head)
    first = () if found is None else decided_by(found[1])
    return read_page(tracking_uri(), registry_uri(), readable([place.head]), first, refresh=True)


def names_asked() -> list[str]:
    """The series in ?names=, at most ASKED."""
    from flask import request

    return [one for one in request.args.get("names", "").split(",") if one][:ASKED]


def readable(heads: list[RunFacts]) -> list[RunFacts]:
    """The same runs. Raises Refused if the reader may not see one of them."""
    for one in heads:
        if not readers().experiment(one.experiment):
            raise Refused(f"run {one.run_id}: in an experiment that you may not read")
    return heads


def warnings_of(page: SessionPage) -> list[RunWarning]:
    """The watch's warnings about the page's runs."""
    return [RunWarning(run=shown.name, warning=one) for shown in page.runs for one in shown.run.warnings]


def read_reference(page: SessionPage) -> list[RunFacts]:
    """The champion's runs."""
    with reading(tracking_uri()) as connection:
        return list(read_facts(connection, list(page.reference.run_ids), tags=(), latest=()).values())


SESSION_ROUTES: dict[str, Callable[[], Any]] = {
    "/session": session,
    "/session.json": session_json,
    "/session.csv": session_csv,
    "/clock.json": clock_json,
    "/compare": compare,
}
