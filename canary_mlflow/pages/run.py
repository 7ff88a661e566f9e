"""A run's page: how far it is, what the watch said, the latest values, its curves and the band behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from canary_mlflow import tags
from canary_mlflow.gates.model.metrics import METRICS, label
from canary_mlflow.gates.model.records import updates_of
from canary_mlflow.gates.model.wording import quantity
from canary_mlflow.pages.curves import as_json, curve, spreads, strips_of
from canary_mlflow.pages.reference import Reference, Usual, away, champion_of, unplaced, usual_of
from canary_mlflow.pages.requests import argument, as_answer, readable, rendered, runs_database, whole_number
from canary_mlflow.pages.series import LATE, drawn_series, up_to_date
from canary_mlflow.policies import load_watch, policy_names
from canary_mlflow.reports.charts import PANELS, PROMISED, SERIES, target_keys, target_of
from canary_mlflow.tracking.describing.schema import mlflow_key, name_of_key
from canary_mlflow.tracking.reading.database import children_of, find_run, read_facts
from canary_mlflow.tracking.reading.facts import Latest, RunFacts
from canary_mlflow.tracking.stores.read_only import refused

if TYPE_CHECKING:
    from flask import Response


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A fixed limit. `side`: above, below or both (the absolute value counts). `source`: who sets it."""

    value: float
    source: str = "watch"
    side: str = "above"

    def broken_by(self, value: float) -> bool:
        """Whether the value lies beyond it."""
        if self.side == "below":
            return value < self.value
        return (abs(value) if self.side == "both" else value) > self.value

    def shown(self, unit: str) -> str:
        """`at most 40`."""
        word = {"above": "at most ", "below": "at least ", "both": "within ±"}[self.side]
        return f"{word}{quantity(self.value, unit)}"


@dataclass(frozen=True, kw_only=True)
class ValueRow:
    """The latest value of one series. `state`: ok, beyond, not finite; '' if no limit is set."""

    label: str
    step: int
    shown: str
    champion: str
    limit: str
    source: str
    state: str


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """Everything on the page except the curves. `siblings`: the other runs of the session."""

    run: RunFacts
    session: RunFacts | None
    siblings: Sequence[RunFacts]
    model: str
    champion: Reference
    rows: Sequence[ValueRow]
    bands: Mapping[str, Usual]
    missing: Sequence[str]


def read_run(run_id: str) -> RunPage:
    """The page of a run. Raises NoSuchRun, and Refused if its reader may not see it."""
    stored = find_run(runs_database(), run_id, params=target_keys())
    readable([stored])
    session = session_of(stored)
    siblings = siblings_of(stored) if session is not None else []
    model = model_of(stored, session)
    champion = champion_of(stored, model, session)
    try:
        bands = bands_of(stored, champion)
    except sa.exc.SQLAlchemyError as error:
        runs_database().rollback()  # so that PostgreSQL answers what comes after
        bands, champion = {}, Reference(said=f"No band of the champion: {refused(error)}.")
    run = up_to_date(stored)
    return RunPage(
        run=run,
        session=session,
        siblings=siblings,
        model=model,
        champion=champion,
        rows=value_rows(run, bands),
        bands=bands,
        missing=[label(name) for name in PROMISED if mlflow_key(name) not in run.latest],
    )


def bands_of(run: RunFacts, champion: Reference) -> dict[str, Usual]:
    """What the champion's runs did, where the run is on the same rollouts, if it has any; {} until that is known."""
    known = usual_of(champion.run_ids, SERIES, 0, run.tags.get(tags.TIER, ""))
    pace = updates_of(drawn_series(runs_database(), run, ["iteration_time"], None, rough=False)[0])
    waits = run.running and unplaced(known, pace, run.step)
    return {} if waits else {name: one.at_pace(pace) for name, one in known.items()}


def session_of(run: RunFacts) -> RunFacts | None:
    """The run's session; None if it has none, or names one of another experiment, which its reader may not see."""
    found = read_facts(runs_database(), [run.parent]).get(run.parent) if run.parent else None
    return found if found is not None and found.experiment == run.experiment else None


def model_of(run: RunFacts, session: RunFacts | None) -> str:
    """The registered model of a run's session, or of its cell in a sweep; '' if it has none."""
    told = run if session is None or session.tags.get(tags.ROLE) == "sweep" else session
    return told.tags.get(tags.MODEL_NAME, "")


def siblings_of(run: RunFacts) -> list[RunFacts]:
    """The session's runs, this one included, oldest first."""
    ids = children_of(runs_database(), [run.parent])[run.parent]
    return list(read_facts(runs_database(), ids, tags=(tags.SEED, tags.WATCH_LEVEL)).values())


def value_rows(run: RunFacts, bands: Mapping[str, Usual]) -> list[ValueRow]:
    """The latest values: first those with a limit, each group in the order of the metrics table."""
    limits = limits_of(run.tags.get(tags.WATCH_POLICY, ""))
    rows = []
    for metric in METRICS.values():
        latest = run.latest.get(mlflow_key(metric.name))
        if latest is None:
            continue
        limit = limits.get(metric.name)
        finite = math.isfinite(latest.value)
        rows.append(
            ValueRow(
                label=label(metric.name),
                step=latest.step,
                shown=quantity(latest.value, metric.unit) if finite else spelled(latest.value),
                champion=range_at(bands.get(metric.name), latest, metric.unit),
                limit="" if limit is None else limit.shown(metric.unit),
                source="" if limit is None else limit.source,
                state=state_of(latest.value, limit),
            )
        )
    return sorted(rows, key=lambda row: row.state == "")


@lru_cache(maxsize=16)
def limits_of(watch: str) -> Mapping[str, Limit]:
    """The limits by canonical name that a policy of the watch sets. Those that are not set are absent. Only shipped
    policies are read: a tag must not name a file to open."""
    rules = load_watch(watch if watch in policy_names("watch") else "default")
    sides = {"entropy": "below", "kl_target_error": "both"}
    return {
        "nonfinite": Limit(value=0, source="any is too many"),
        "truncated_share": Limit(value=rules.facts.capped_share),
        **{
            name: Limit(value=ceiling, side=sides.get(name, "above"))
            for name, ceiling in rules.ceilings.items()
            if ceiling is not None
        },
    }


def state_of(value: float, limit: Limit | None) -> str:
    """ok, beyond, not finite; '' if no limit is set."""
    if not math.isfinite(value):
        return "not finite"
    return "" if limit is None else "beyond" if limit.broken_by(value) else "ok"


def range_at(usual: Usual | None, latest: Latest, unit_of: str) -> str:
    """`20.1 ms to 22.4 ms`: the champion's range at that step; '' if it has none there."""
    found = usual.band.at(latest.step) if usual is not None else None
    if found is None:
        return ""
    low, high = (quantity(value, unit_of) for value in found)
    return low if low == high else f"{low} to {high}"


def spelled(value: float) -> str:
    """A value that is not finite, in text."""
    return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"


# ---- routes ----------------------------------------------------------------------------------------------------------


def run() -> str:
    """The page of a run."""
    page = read_run(argument("id", 64))
    targets = {panel.title: target_of(panel, page.run.params) for panel in PANELS}
    strips = strips_of({name_of_key(key) for key in page.run.latest})
    return rendered("canary/run.html", page=page, run=page.run, panels=PANELS, targets=targets, strips=strips)


def run_json() -> Response:
    """The curves of a run, or what is new since ?after=STEP, with how far each departs from the champion's runs: one
    bulk read. ?rough=1: some rows, at once, and no champion."""
    after, rough = whole_number("after"), whole_number("rough") == 1
    found = find_run(runs_database(), argument("id", 64))
    readable([found])
    return as_answer(curves(found, after, rough=rough))


def curves(run: RunFacts, after: int | None = None, *, rough: bool = False) -> dict[str, Any]:
    """What `run_json` answers."""
    since = None if after is None else after - LATE
    series, some = drawn_series(runs_database(), run, SERIES, since, rough=rough)
    known: Mapping[str, Usual] = {}
    if not rough:
        session = session_of(run)
        champion = champion_of(run, model_of(run, session), session)
        known = usual_of(champion.run_ids, SERIES, 0, run.tags.get(tags.TIER, ""))
    return {
        "running": run.running,
        "warnings": marks_of(run),
        "whole": after is None,
        "rough": some,
        "next": run.step,
        "series": {name: curve(one) for name, one in series.items()},
        "spreads": spreads(series),
        "away": away(known, series),
    }


def marks_of(run: RunFacts) -> list[dict[str, Any]]:
    """The watch's warnings as a chart marks them."""
    return [{"step": one.step, "stream": one.stream, "level": one.level.name} for one in run.warnings]


def band_json() -> Response:
    """The champion's band behind a run's curves."""
    page = read_run(argument("id", 64))
    series = {name: as_json(band.drawn()) for name, band in page.bands.items()}
    waits = page.run.running and bool(page.champion.run_ids) and not series
    return as_answer({"said": page.champion.said, "version": page.champion.version, "series": series, "waits": waits})
