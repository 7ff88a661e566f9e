"""The page of a session, or of two to six compared: all runs in each chart, the charts ranked by departure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from canary_mlflow import tags
from canary_mlflow.pages.beside import Compared, sides_of
from canary_mlflow.pages.curves import OVERLAP, as_json, drawn_series, mean_curve
from canary_mlflow.pages.departures import away, reference_of, unplaced
from canary_mlflow.pages.facts import children_of, read_facts, read_params
from canary_mlflow.pages.run import Champion, champion_of
from canary_mlflow.pages.unsent import up_to_date
from canary_mlflow.reports.panels import PANELS, SERIES, Panel, label, target_keys, target_of
from canary_mlflow.tracking.describing.schema import name_of_key
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.stores.read_only import reading
from gates.model.records import updates_of

MOST_RUNS = 12  # lines in one chart
SIDES = "abcdef"
ASKED = 20  # series that one request may name
GROWN = 20  # a reference that is still running is read again when it is a 20th longer


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One run of the page, its name there, and the side that it belongs to, counted from 0."""

    run: RunFacts
    name: str
    side: int = 0


@dataclass(frozen=True, kw_only=True)
class SessionPage:
    """Everything except curves, verdict and samples. `left_out`: how many runs a chart has no room for. `panels`: the
    charts shown at first. `others`: every other series that a run has recorded."""

    heads: Sequence[RunFacts]
    runs: Sequence[Shown]
    left_out: int
    model: str
    reference: Champion
    panels: Sequence[Panel]
    others: Sequence[str]
    targets: Mapping[str, float | None]
    beside: Sequence[Compared] = field(default=())
    first: Sequence[str] = field(default=())

    @property
    def running(self) -> bool:
        """Whether anything has not ended, so that more may come."""
        return any(one.running for one in self.heads) or any(one.run.running for one in self.runs)

    @property
    def level(self) -> str:
        """The watch's level for the first run that has one; '' if none was watched."""
        return next((one.run.level for one in self.runs if one.run.level), "")


def read_page(
    tracking: str, registry: str, heads: Sequence[RunFacts], first: Sequence[str] = (), *, compare: bool = False,
    refresh: bool = False,
) -> SessionPage:  # fmt: skip
    """The page of one session with its champion; with `compare`, of several, the first of which is the reference.
    `first`: the series that decided, whose charts come first. `refresh`: only what the curves need, without targets
    and differences. Raises StoreError."""
    runs, left_out = runs_of(tracking, heads, compare=compare)
    if not refresh:  # which begins after what the store has
        runs = [replace(one, run=up_to_date(one.run)) for one in runs]
    models = {one.run.tags.get(tags.MODEL_NAME, "") for one in runs}  # of a sweep's runs, each its own
    model = heads[0].tags.get(tags.MODEL_NAME, "") or (models.pop() if len(models) == 1 else "")
    own = [one.run for one in runs if one.side == 0]
    if compare:
        said = f"Grey: what {name_of(heads[0])} did; the others are ranked by how far they go from it."
        reference = Champion(said=said, run_ids=tuple(one.run_id for one in own))
    elif own:
        reference = champion_of(tracking, registry, own[0], model, heads[0])
    else:
        reference = Champion(said="No run has begun yet.")
    recorded = list(dict.fromkeys(name_of_key(key) for one in runs for key in one.run.latest))
    panels = panels_of(recorded, [one.run for one in runs], first)
    drawn = {name for panel in panels for name in (*panel.lines, panel.spread)}
    targets: Mapping[str, float | None] = {}
    if runs and not refresh:
        with reading(tracking) as connection:
            params = read_params(connection, runs[0].run.run_id, target_keys())
        targets = {panel.title: target_of(panel, params) for panel in panels}
    return SessionPage(
        heads=heads,
        runs=runs,
        left_out=left_out,
        model=model,
        reference=reference,
        panels=panels,
        first=first,
        others=sorted(set(recorded) - drawn),
        targets=targets,
        beside=() if refresh else beside_of(tracking, runs, reference, heads, compare=compare),
    )


def runs_of(tracking: str, heads: Sequence[RunFacts], *, compare: bool) -> tuple[list[Shown], int]:
    """The runs of all sides that there is room for, and how many were left out."""
    sessions = [one.run_id for one in heads if one.parental]
    with reading(tracking) as connection:
        children = children_of(connection, sessions) if sessions else {}
        ids = {one.run_id: children.get(one.run_id, []) if one.run_id in sessions else [one.run_id] for one in heads}
        facts = read_facts(connection, [run_id for found in ids.values() for run_id in found])
    found = []
    for side, head in enumerate(heads):
        for run in (facts[one] for one in ids[head.run_id] if one in facts and not facts[one].deleted):
            if run.tags.get(tags.ROLE, "run") == "run":
                named = run.short if head.run_id in sessions else ""
                name = ", ".join(filter(None, (SIDES[side], named))) if compare else run.short
                found.append(Shown(run=run, name=name, side=side))
    return found[:MOST_RUNS], max(0, len(found) - MOST_RUNS)


def name_of(head: RunFacts) -> str:
    """A session's display name."""
    return head.name or head.run_id[:8]


def panels_of(recorded: Sequence[str], runs: Sequence[RunFacts], first: Sequence[str] = ()) -> list[Panel]:
    """The charts of what was recorded: of what comes `first`, the usual ones, and one for each other series that the
    watch warned about. While a run goes on all of the usual ones, because more may come; a chart without a curve is
    hidden."""
    known = set(recorded)
    going = not runs or any(run.running for run in runs)
    usual = [panel for panel in PANELS if going or known & set(panel.lines)]
    marked = {name for panel in usual for name in panel.marked}
    asked = dict.fromkeys([*first, *(one.stream for run in runs for one in run.warnings)])
    found = [*usual, *(panel_of(name) for name in asked if name in known and name not in marked)]
    places = {name: at for at, name in enumerate(first)}
    return sorted(found, key=lambda panel: min(places.get(name, len(places)) for name in panel.marked))


def panel_of(name: str) -> Panel:
    """A chart of one series alone."""
    return Panel(title=label(name), lines=(name,))


def beside_of(
    tracking: str, runs: Sequence[Shown], reference: Champion, heads: Sequence[RunFacts], *, compare: bool
) -> list[Compared]:
    """What differs from the reference and what is equal, for each other side."""
    if not reference.run_ids:
        return []
    others = [
        (
            f"{SIDES[side]}, {name_of(head)}" if compare else name_of(head),
            [one.run.run_id for one in runs if one.side == side],
        )
        for side, head in enumerate(heads)
        if not compare or side
    ]
    first = f"a, {name_of(heads[0])}" if compare else f"champion, version {reference.version}"
    return sides_of(tracking, (first, reference.run_ids), others)


def curves_of(
    connection: sa.Connection,
    tracking: str,
    page: SessionPage,
    names: Sequence[str],
    after: int | None,
    until: int | None,
    *,
    rough: bool,
) -> dict[str, Any]:
    """The curves of all runs as JSON values, with the reference's band and each series' departure from it; with
    `after`, only what is new since that step; with `until` too, that stretch in full detail. `rough`: only some rows of
    long series, and no reference, so that there is something to see before all is read."""
    wanted = list(names) or list(dict.fromkeys([*SERIES, *(name for one in page.panels for name in one.lines)]))
    since = None if after is None else after - (OVERLAP if until is None else 1)
    tier = page.heads[0].tags.get(tags.TIER, "")
    known = {} if rough else reference_of(tracking, page.reference.run_ids, tuple(wanted), steps_of(page), tier)
    runs, few, pace = [], False, math.nan
    for one in page.runs:
        own = since
        if after is not None and until is None and not one.run.running:
            own = max(after, one.run.step) - OVERLAP  # the rest of it was sent when it ended
        series, some = drawn_series(connection, one.run, [*wanted, "iteration_time"], own, until, rough=rough)
        few, pace = few or some, pace if one.run.run_id in page.reference.run_ids else updates_of(series)
        warned = [{"step": w.step, "stream": w.stream, "level": w.level.name} for w in one.run.warnings]
        runs.append({
            "id": one.run.run_id, "name": one.name, "side": one.side, "running": one.run.running, "warnings": warned,
            "series": {name: mean_curve(found) for name, found in series.items() if name in wanted},
            "away": {} if one.run.run_id in page.reference.run_ids else away(known, series),
        })  # fmt: skip
    bands = {}
    if after is None or until is not None:
        bands = {name: as_json(*one.beside(pace).drawn(after, until)) for name, one in known.items()}
    again = page.running and unplaced(known, pace, next_of(page))  # with the band where it belongs
    return {"whole": after is None, "rough": few, "next": None if again else next_of(page), "running": page.running,
            "runs": runs, "bands": bands}  # fmt: skip


def next_of(page: SessionPage) -> int:
    """The step after which the next answer has to begin: where the run is that is least far of those that go on."""
    going = [one.run.step for one in page.runs if one.run.running]
    return min(going) if going else max((one.run.step for one in page.runs), default=0)


def steps_of(page: SessionPage) -> int:
    """How many steps the reference has. While it runs, this is a number that changes only when the reference is about
    a 20th longer, so that its band is not computed again for each new step."""
    runs = [one.run for one in page.runs if one.run.run_id in page.reference.run_ids]
    steps = sum(run.step for run in runs)
    return int(GROWN * math.log1p(steps)) if any(run.running for run in runs) else steps
