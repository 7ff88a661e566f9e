"""The curves of a run, and the band of the champion's runs behind them, with no more points than a screen needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from canary_mlflow.analysis.bands import BAND, said_of
from canary_mlflow.analysis.downsampling import Steps, Values, keep_envelope, keep_means, keep_peaks
from canary_mlflow.pages.kept_points import kept_points
from canary_mlflow.pages.rough import rough_points
from canary_mlflow.pages.unsent import unsent
from canary_mlflow.reports.panels import PANELS
from canary_mlflow.tracking.describing.schema import mlflow_key
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.reading.histories import series_of
from canary_mlflow.tracking.reading.points import NONE, points_over
from gates.model.records import Series

MOST = 800  # points of one curve: more than a chart has pixels on most screens
OVERLAP = 100  # steps that are sent again: a slow rank's values arrive after those of later steps


def read_series(
    connection: sa.Connection, run_ids: Sequence[str], names: Sequence[str], *, drawn: bool = False
) -> dict[str, dict[str, Series]]:
    """Series by run and canonical name, in one bulk read; those without points are left out. `drawn`: stored points of
    long series are good enough."""
    keys = {mlflow_key(name): name for name in names}
    read = kept_points if drawn else points_over
    found: dict[str, dict[str, Series]] = {run_id: {} for run_id in run_ids}
    for (run_id, key), rows in read(connection, {run_id: list(keys) for run_id in run_ids}).items():
        if len(rows):
            found[run_id][keys[key]] = series_of(keys[key], rows)
    return found


def drawn_series(
    connection: sa.Connection,
    run: RunFacts,
    names: Sequence[str],
    after: int | None,
    until: int | None = None,
    *,
    rough: bool,
) -> tuple[dict[str, Series], bool]:
    """A run's series by canonical name, with what it has not sent yet; and whether any has only some of its points,
    which `rough` allows if it is long."""
    keys = {mlflow_key(name): name for name in names}
    recorded = [key for key in keys if key in run.latest]
    new = after is not None and until is None  # few rows, none of them stored
    if rough:
        points, some = rough_points(connection, run, recorded)
    else:
        read = points_over if new else kept_points
        points = {key: rows for (_, key), rows in read(connection, {run.run_id: recorded}, after, until).items()}
        some = False
    for key, rows in (unsent(run) if until is None else {}).items():
        points[key] = np.concatenate([points.get(key, NONE), rows])
    return {keys[key]: series_of(keys[key], rows) for key, rows in points.items() if key in keys and len(rows)}, some


def curve(series: Series) -> dict[str, Any]:
    """One line: its finite values with all peaks, and the steps whose values are not finite."""
    finite = series.finite_only()
    steps, values = keep_peaks(finite.steps, finite.values, MOST)
    return {"steps": steps.tolist(), "values": figures(values), **broken_of(series)}


def mean_curve(series: Series) -> dict[str, Any]:
    """One line that stands out from its noise: for a long series, the mean of each stretch with its lowest and highest
    value."""
    finite = series.finite_only()
    if len(finite.steps) <= MOST:
        return {"steps": finite.steps.tolist(), "values": figures(finite.values), **broken_of(series)}
    steps, mean, low, high = keep_means(finite.steps, finite.values, MOST // 2)
    return {"steps": steps.tolist(), "values": figures(mean), "low": figures(low), "high": figures(high),
            **broken_of(series)}  # fmt: skip


def broken_of(series: Series) -> dict[str, Any]:
    """The steps whose values are not finite, and a sentence on them; empty if all are finite."""
    broken = series.steps[~series.finite]
    if not len(broken):
        return {}
    return {"broken": keep_some(broken), "said": said_of(len(broken), len(series.steps), int(broken[0]))}


def spreads(series: Mapping[str, Series]) -> dict[str, Any]:
    """Mean minus and plus spread, for panels that have both."""
    found = {}
    for panel in PANELS:
        mean, spread = series.get(panel.lines[0]), series.get(panel.spread)
        if mean is None or spread is None:
            continue
        mean, spread = mean.finite_only(), spread.finite_only()
        steps, here, there = np.intersect1d(mean.steps, spread.steps, return_indices=True)
        if len(steps):
            low, high = mean.values[here] - spread.values[there], mean.values[here] + spread.values[there]
            found[panel.lines[0]] = as_json(*keep_envelope(steps, low, high, BAND))
    return found


def keep_some(steps: Steps) -> list[int]:
    """Some of the steps, enough to mark where they are."""
    return sorted({*map(int, steps[:: max(1, len(steps) // 100)]), int(steps[-1])})


def figures(values: Values) -> list[float]:
    """The values to six significant digits: no screen shows more."""
    return [float(f"{value:.6g}") for value in values]


def as_json(steps: Steps, low: Values, high: Values) -> dict[str, Any]:
    """A band as JSON values."""
    return {"steps": steps.tolist(), "low": figures(low), "high": figures(high)}
