"""The routes of a session and of several compared: pages, curves, clocks, CSV, the answers of its runs beside the
champion's; and what a word in an address names.

Answers are read from the runs' own folders and never fetched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flask import current_app, redirect, request, url_for

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchRun, NoSuchVersion, UsageError
from canary_mlflow.files.source import read_bytes
from canary_mlflow.gates.model.records import updates_of
from canary_mlflow.pages.curves import clocks_of, csv_lines, middle, strips_of
from canary_mlflow.pages.models import evaluated, is_model, session_of, version_behind
from canary_mlflow.pages.requests import (
    argument,
    as_answer,
    folder_of,
    readable,
    readers,
    registry_database,
    rendered,
    runs_database,
    tracking_uri,
    whole_number,
)
from canary_mlflow.pages.series import read_series
from canary_mlflow.pages.session import (
    SIDES,
    SessionPage,
    curves_of,
    earlier_than,
    gate_would_say,
    grid_of,
    name_of,
    newest,
    read_page,
    sides_beside,
    targets_of,
)
from canary_mlflow.pages.verdict import judged
from canary_mlflow.reports import instabilities
from canary_mlflow.reports.charts import GIVEN
from canary_mlflow.reports.sweep import ends
from canary_mlflow.reports.view import view_of
from canary_mlflow.tracking.reading.database import find_run, named_like, read_facts
from canary_mlflow.tracking.reading.facts import RunFacts, count
from canary_mlflow.tracking.reading.samples import FILE, MOST_BYTES, Answer, read

if TYPE_CHECKING:
    from flask import Response


Row = tuple[str, Sequence[Answer | None]]  # what was asked, and what each side answered
DRAWN = {"worst": 1, "best": -1}  # for training; which reward comes first
LAST = 1 << 53  # no step is so late


def beside(tables: Sequence[tuple[str, Sequence[Answer]]], steps: Sequence[int] = ()) -> list[Row]:
    """A row for the worst, the best and each fixed prompt: each table's answer nearest to its step, else its last."""
    sides = [at_step(found, step) for (_, found), step in zip(tables, steps or [LAST] * len(tables), strict=True)]
    asked = dict.fromkeys(key for side in sides for key in side if key not in DRAWN)
    return [(key, found) for key in (*DRAWN, *asked) if any(found := [side.get(key) for side in sides])]


def at_step(found: Sequence[Answer], step: int) -> dict[str, Answer]:
    """By prompt, or as the worst and the best, the answer nearest to the step."""
    chosen: dict[str, Answer] = {}
    for one in sorted(found, key=lambda one: (abs(one.step - step), DRAWN.get(one.kind, 0) * (one.reward or 0.0))):
        chosen.setdefault(one.prompt if one.kind == "fixed" else one.kind, one)
    return chosen


def tables_of(page: SessionPage) -> list[tuple[str, list[Answer]]]:
    """The tables to set beside each other: of two sides the first of each, else the champion's and each run's."""
    champion = {} if page.compare else read_facts(runs_database(), page.reference.run_ids, tags=())
    sides = [("champion", run) for run in champion.values()] + [(one.name, one.run) for one in page.runs]
    found: dict[str, tuple[str, list[Answer]]] = {}
    for name, run in sides:
        side = name[:1] if page.compare or name == "champion" else run.run_id
        if side not in found and (kept := table(run)):
            found[side] = name, kept
    return list(found.values())


def table(run: RunFacts) -> list[Answer]:
    """A run's table of samples; empty if it has none that this server can read."""
    folder = folder_of(run)
    if folder is None:
        return []
    try:
        return read(read_bytes(folder / FILE, 2 * MOST_BYTES, within=folder).decode("utf-8", "replace"), FILE)
    except (OSError, ValueError, UsageError):
        return []


ASKED = 20  # series that one request may name
LONGEST = 300  # characters of a word that names a session


def session() -> Any:
    """The page for ?id=: a session with all its runs, or a model."""
    place = find(argument("id", LONGEST))
    if place.head is None:
        return redirect(url_for("canary_pages.model", name=place.model))
    heads = readable([place.head])
    found = judged(place.head)
    if found is not None and not readers().model(found[1].model):
        found = None
    page = newest(read_page(heads, None if found is None else found[1]))
    role = place.head.tags.get(tags.ROLE)
    earlier = earlier_than(place.head) if role == "session" else []
    return page_of(
        page,
        [("id", place.head.run_id)],
        asked=place.run.run_id if place.run else "",
        earlier=[one for one in earlier if readers().experiment(one[1].experiment)],
        grid=grid_of(place.head) if role == "sweep" else None,
        row=None if found is None else found[0],
        card=None if found is None else view_of(found[1], then=found[0] is not None),
        evals=[] if found is None else evaluated(found[1].model, found[1].version),
    )


def page_of(page: SessionPage, query: Sequence[tuple[str, str]], **more: Any) -> str:
    """The page in HTML. `query`: what its further requests ask."""
    return rendered(
        "canary/session.html",
        page=page,
        query=query,
        given=GIVEN,
        targets=targets_of(page),
        sides=sides_beside(page),
        warned=instabilities.of_warnings(page.warnings),
        strips=strips_of(page.recorded),
        tables=tables_of(page),
        beside=beside,
        ends=ends,
        **more,
    )


def find_session(word: str) -> Any:
    """Redirect an address that can be shared, /session/WORD, to `session`."""
    if len(word) > LONGEST:
        raise UsageError(f"an address of {len(word)} characters; expected an id or a name; see the overview")
    return redirect(url_for("canary_pages.session", id=word))


def compare() -> Any:
    """Two to six runs or sessions in common charts: ?a=…&b=…, or those chosen in the index: ?with=ID&with=ID."""
    if chosen := request.args.getlist("with"):
        if not 2 <= len(chosen) <= len(SIDES):
            raise UsageError(f"{len(chosen)} chosen to compare; expected two to six")
        found = read_facts(runs_database(), [one[:64] for one in chosen], tags=()).values()
        oldest = [one.run_id for one in sorted(found, key=lambda one: one.started)]
        sides: dict[str, Any] = dict(zip(SIDES, oldest, strict=False))
        return redirect(url_for("canary_pages.compare", **sides))
    query = sides_asked()
    page = newest(read_page(heads_of(query)))
    decision, why = None, ""
    if len(page.heads) == 2:
        labels = [f"{SIDES[side]}, {name_of(head)}" for side, head in enumerate(page.heads)]
        decision, why = gate_would_say(page.heads, labels)
    return page_of(page, query, card=None if decision is None else view_of(decision), why=why)


def answers() -> str:
    """The answers of what is asked for nearest to ?step=, as a part of a page; a policy's champion where it had made as
    many rollouts."""
    step, page = whole_number("step") or 0, asked_for()
    tables, ids = tables_of(page), [page.reference.run_ids[:1], [one.run.run_id for one in page.runs[:1]]]
    made = read_series(runs_database(), [*ids[0], *ids[1]], ["iteration_time"])
    theirs, own = (updates_of(made.get(next(iter(some), ""), {})) for some in ids)
    before = round(step * theirs / own) if not page.compare and math.isfinite(theirs / own) else step
    rows = beside(tables, [before if name == "champion" else step for name, _ in tables])
    return rendered("canary/answers.html", rows=rows, names=[name for name, _ in tables], step=step)


def sides_asked() -> list[tuple[str, str]]:
    """What ?a=…&b=… name. Raises UsageError."""
    asked = [(name, argument(name, LONGEST)) for name in SIDES if request.args.get(name)]
    if len(asked) < 2:
        raise UsageError(
            f"found {len(asked)} to compare; expected two to six: ?a=…&b=…, runs, sessions or MODEL/VERSION"
        )
    return asked


def heads_of(asked: Sequence[tuple[str, str]]) -> Sequence[RunFacts]:
    """The runs or sessions that the sides are. Raises UsageError, NoSuchRun, Refused."""
    heads = []
    for name, word in asked:
        place = find(word)
        if place.head is None:
            raise UsageError(f"{name}: {word!r} is a model; expected a run, a session, or MODEL/VERSION")
        heads.append(place.run or place.head)
    return readable(heads)


# ---- what a word in an address names ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Place:
    """A model, or a session (or a run without one). `run`: the run of the session that was asked for."""

    model: str = ""
    head: RunFacts | None = None
    run: RunFacts | None = None


def find(word: str) -> Place:
    """The place that a word names. Raises NoSuchRun, NoSuchVersion."""
    name = word.removeprefix("models:/")
    if read_facts(runs_database(), [name], tags=()):
        return place_of(name)
    if is_model(registry_database(), name):
        return Place(model=name)
    if found := version_in(name) or named_like(runs_database(), name):
        return place_of(found)
    raise NoSuchRun(
        f"{word[:LONGEST]!r}: no run, session, version, model or name of one in this store; expected an id, "
        "MODEL/VERSION, MODEL@champion or a name; see the overview"
    )


def version_in(name: str) -> str:
    """The session of MODEL/VERSION or MODEL@ALIAS; '' for any other word. Raises NoSuchVersion if there is none."""
    connection = registry_database()
    model, at, alias = name.rpartition("@" if "@" in name else "/")
    if not at or not is_model(connection, model):
        return ""
    version = version_behind(connection, model, alias) if at == "@" else count(alias)
    session = session_of(connection, model, version) if version else ""
    if not session:
        raise NoSuchVersion(f"{name[:LONGEST]!r}: no such version with a session; expected one; see the model's page")
    return session


def place_of(run_id: str) -> Place:
    """The session that a run belongs to, or the run itself."""
    run = find_run(runs_database(), run_id)
    parent = read_facts(runs_database(), [run.parent], latest=None).get(run.parent) if run.parent else None
    if parent is None or parent.deleted or not parent.parental:
        return Place(head=run)
    return Place(head=parent, run=run)


# ---- what a page fetches ---------------------------------------------------------------------------------------------


def session_json() -> Response:
    """The curves of a session's runs (?id=), or of what is compared (?a=…&b=…), ranked. ?names=a,b: only these series;
    ?after=STEP: only what is new; ?from=STEP&to=STEP: a stretch in full detail; ?rough=1: some rows, at once."""
    after, until = whole_number("after"), whole_number("to")
    if until is not None:
        after = whole_number("from") or 0
    return as_answer(curves_of(asked_for(), names_asked(), after, until, rough=whole_number("rough") == 1))


def clock_json() -> Response:
    """The clock of each run, by id: when it was at which step. `reference`: the clock of the band."""
    page = asked_for()
    runs = clocks_of([one.run for one in page.runs])
    there = {run_id: runs[run_id] for run_id in page.reference.run_ids if run_id in runs}
    if not there:
        there = clocks_of(list(read_facts(runs_database(), page.reference.run_ids, tags=(), latest=None).values()))
    return as_answer({"runs": runs, "reference": middle(there)})


def session_csv() -> Response:
    """Every recorded value of ?names=a,b."""
    names, page = names_asked(), asked_for()
    if not names:
        raise UsageError("names: missing; expected the series, as in ?names=loss,kl")
    lines = csv_lines(tracking_uri(), [(one.run.run_id, one.name) for one in page.runs], names)
    made = current_app.response_class(lines, mimetype="text/csv")
    made.headers["Content-Disposition"] = f'attachment; filename="canary-{page.heads[0].run_id[:8]}.csv"'
    return made


def asked_for() -> SessionPage:
    """The page whose curves were asked for. Raises UsageError, NoSuchRun, Refused."""
    if not request.args.get("id"):
        return read_page(heads_of(sides_asked()))
    place = find(argument("id", LONGEST))
    if place.head is None:
        raise UsageError("id: a model; expected a run, a session or MODEL/VERSION")
    found = None if place.head.running else judged(place.head)
    return read_page(readable([place.head]), None if found is None else found[1])


def names_asked() -> list[str]:
    """The series in ?names=, at most ASKED."""
    return [one for one in request.args.get("names", "").split(",") if one][:ASKED]
