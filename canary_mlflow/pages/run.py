"""A run's page: how far it is, what the watch said, the latest values, its curves and the band behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from canary_mlflow import tags
from canary_mlflow.errors import StoreError
from canary_mlflow.pages.curves import OVERLAP, curve, drawn_series, spreads
from canary_mlflow.pages.departures import Usual, away, reference_of, unplaced
from canary_mlflow.pages.facts import children_of, find_run, read_facts, read_params
from canary_mlflow.pages.limits import Limit, limits_of
from canary_mlflow.pages.models import champion_session
from canary_mlflow.pages.requests import readers
from canary_mlflow.pages.unsent import up_to_date
from canary_mlflow.pages.verdict import judged
from canary_mlflow.reports.panels import PROMISED, SERIES, label, target_keys
from canary_mlflow.tracking.describing.schema import mlflow_key
from canary_mlflow.tracking.reading.facts import Latest, RunFacts
from canary_mlflow.tracking.reading.numbers import count
from canary_mlflow.tracking.stores.read_only import reading
from gates.model.metrics import METRICS
from gates.model.records import updates_of
from gates.model.wording import quantity


@dataclass(frozen=True, kw_only=True)
class Champion:
    """The champion behind a band. `said`: a sentence about it, or on why there is none; then `run_ids` is empty."""

    said: str
    version: int | None = None
    run_ids: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ValueRow:
    """The latest value of one series. `state`: ok, beyond, not finite; '' if no limit is set."""

    name: str
    group: str
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
    champion: Champion
    params: Mapping[str, str]
    rows: Sequence[ValueRow]
    bands: Mapping[str, Usual]
    missing: Sequence[str]


def read_run(tracking: str, registry: str, run_id: str) -> RunPage:
    """The page of a run. Raises NoSuchRun and StoreError."""
    with reading(tracking) as connection:
        stored = find_run(connection, run_id)
        run = up_to_date(stored)
        session = session_of(connection, run)
        siblings = siblings_of(connection, run) if session is not None else []
        params = read_params(connection, run_id, target_keys())
    model = model_of(run, session)
    champion = champion_of(tracking, registry, run, model, session)
    try:
        bands = bands_beside(tracking, stored, champion)
    except StoreError as error:
        bands, champion = {}, Champion(said=f"No band of the champion: {error}.")
    return RunPage(
        run=run,
        session=session,
        siblings=siblings,
        model=model,
        champion=champion,
        params=params,
        rows=value_rows(run, bands),
        bands=bands,
        missing=[label(name) for name in PROMISED if mlflow_key(name) not in run.latest],
    )


def bands_beside(tracking: str, run: RunFacts, champion: Champion) -> dict[str, Usual]:
    """What the champion's runs did, where the run is on the same rollouts, if it has any; {} until that is known."""
    known = reference_of(tracking, champion.run_ids, SERIES, 0, run.tags.get(tags.TIER, ""))
    with reading(tracking) as connection:
        pace = updates_of(drawn_series(connection, run, ["iteration_time"], None, rough=False)[0])
    waits = run.running and unplaced(known, pace, run.step)
    return {} if waits else {name: one.beside(pace) for name, one in known.items()}


def session_of(connection: sa.Connection, run: RunFacts) -> RunFacts | None:
    """The run's session; None if it has none, or names one of another experiment, which its reader may not see."""
    found = read_facts(connection, [run.parent], latest=()).get(run.parent) if run.parent else None
    return found if found is not None and found.experiment == run.experiment else None


def model_of(run: RunFacts, session: RunFacts | None) -> str:
    """The registered model of a run's session, or of its cell in a sweep; '' if it has none."""
    told = run if session is None or session.tags.get(tags.ROLE) == "sweep" else session
    return told.tags.get(tags.MODEL_NAME, "")


def curves(
    connection: sa.Connection, tracking: str, registry: str, run: RunFacts, after: int | None = None, *,
    rough: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """All curves of the run as JSON values, with how far each departs from the champion's runs; with `after`, only what
    is new since that step. `rough`: only some points of long series, and no champion."""
    since = None if after is None else after - OVERLAP
    series, some = drawn_series(connection, run, SERIES, since, rough=rough)
    known: Mapping[str, Usual] = {}
    if not rough:
        session = session_of(connection, run)
        champion = champion_of(tracking, registry, run, model_of(run, session), session)
        known = reference_of(tracking, champion.run_ids, SERIES, 0, run.tags.get(tags.TIER, ""))
    return {
        "whole": after is None,
        "rough": some,
        "next": run.step,
        "series": {name: curve(one) for name, one in series.items()},
        "spreads": spreads(series),
        "away": away(known, series),
    }


def siblings_of(connection: sa.Connection, run: RunFacts) -> list[RunFacts]:
    """The session's runs, this one included, oldest first."""
    ids = children_of(connection, [run.parent]).get(run.parent, [])
    return list(read_facts(connection, ids, tags=(tags.SEED, tags.WATCH_LEVEL), latest=()).values())


def champion_of(tracking: str, registry: str, run: RunFacts, model: str, session: RunFacts | None) -> Champion:
    """The champion whose runs a run is shown with, or a sentence on why there is none. For a judged session, that is
    what it was judged against: also once it, or another version, is champion itself."""
    if not model:
        return Champion(said="No band of a champion: this run belongs to no session of a registered model.")
    unreadable = f"No band of a champion: you may not read that of {model}."
    if not readers().model(model):
        return Champion(said=unreadable)
    with reading(registry) as connection:
        version, evidence = champion_session(connection, model)
    known = judged(registry, session) if session is not None and session.tags.get(tags.VERDICT) else None
    before = known[1].verdict if known is not None and known[1].verdict.baseline_runs else None
    if version is None and before is None:
        return Champion(said=f"No band of a champion: {model} has none yet.")
    if before is None and evidence and evidence == run.parent:
        return Champion(said=f"This run is evidence of the champion itself, version {version}.", version=version)
    with reading(tracking) as connection:
        found = children_of(connection, [evidence]) if evidence and not before else {}
        ids = before.baseline_runs if before else found.get(evidence, [])
        runs = list(read_facts(connection, ids, latest=()).values())
    then = before is not None and before.baseline_version != str(version)
    version = count(before.baseline_version or "") if before else version
    if not all(readers().experiment(one.experiment) for one in runs):
        return Champion(said=unreadable)
    alike = [one for one in runs if workload(one) == workload(run) and one.tags.get(tags.COMPLETED) == "true"]
    if not runs:
        return Champion(said=f"No band of the champion: the runs of version {version} are gone.", version=version)
    if not alike:
        return Champion(
            said=f"No band of the champion: version {version} did other work than this run.", version=version
        )
    what = f"the range of {len(alike)} runs" if len(alike) > 1 else "a line, the one run"
    return Champion(
        said=f"Grey: {what} of the champion{' then' if then else ''}, version {version}.",
        version=version,
        run_ids=tuple(one.run_id for one in alike),
    )


def workload(run: RunFacts) -> dict[str, str]:
    """The workload tags: two runs can be compared if they are equal."""
    return {key: value for key, value in run.tags.items() if key.startswith(tags.WORKLOAD)}


def value_rows(run: RunFacts, bands: Mapping[str, Usual]) -> list[ValueRow]:
    """The latest values: first those with a limit, each group in the order of the metrics table."""
    limits = limits_of(run.tags)
    rows = []
    for metric in METRICS.values():
        latest = run.latest.get(mlflow_key(metric.name))
        if latest is None:
            continue
        limit = limits.get(metric.name)
        finite = math.isfinite(latest.value)
        rows.append(
            ValueRow(
                name=metric.name,
                group=metric.group,
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
