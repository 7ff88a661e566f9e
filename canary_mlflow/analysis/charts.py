"""The charts of a study: the panels of the live page first, then every other series that changes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from canary_mlflow.reports.charts import (
    BAND,
    Band,
    Chart,
    Curve,
    Mark,
    Values,
    broken_in,
    envelope,
    keep_peaks,
    spread_of,
    thinned,
)
from canary_mlflow.reports.panels import PANELS, PROMISED, SERIES, Panel, label, target_of
from gates.model.metrics import METRICS
from gates.model.records import Run, Series

FARTHEST = 1e100  # matplotlib cannot scale an axis to the largest floats
REST = 40  # further charts; a trainer may log hundreds of series of its own


def charts_of(
    runs: Sequence[tuple[str, Run]],
    band: Sequence[Run],
    marks: Sequence[Mark],
    params: Mapping[str, str],
    *,
    rest: bool,
) -> list[Chart]:
    """One chart per panel that is not empty, and with `rest` one for every further series that changes.

    `runs`: (name, run).
    """
    often: Counter[str] = Counter()
    charts = []
    for panel in [*PANELS, *(rest_of([run for _, run in runs]) if rest else ())]:
        slug = re.sub(r"[^a-z0-9]+", "-", panel.title.lower()).strip("-")[:60] or "series"
        number = f"--{often[slug] + 1}" if often[slug] else ""  # a trainer may log both `a/b` and `a_b`
        chart = chart_of(panel, f"{slug}{number}", runs, band, marks, target_of(panel, params))
        if chart.curves or chart.said:
            often[slug] += 1
            charts.append(chart)
    return charts


def rest_of(runs: Sequence[Run]) -> Iterator[Panel]:
    """A panel for each series that no panel of the live page shows and that changes."""
    names = list(dict.fromkeys(name for run in runs for name in run.series if name not in SERIES))
    names.sort(key=lambda name: (name not in METRICS, name))
    changing = [name for name in names if any(name in run.series and changes(run.series[name]) for run in runs)]
    return (Panel(title=label(name)[:1].upper() + label(name)[1:], lines=(name,)) for name in changing[:REST])


def changes(series: Series) -> bool:
    """Whether there is anything to see in a curve; NaN is."""
    return len(series.values) > 1 and (not series.finite.all() or bool(np.ptp(series.values) > 0))


def chart_of(
    panel: Panel,
    slug: str,
    runs: Sequence[tuple[str, Run]],
    band: Sequence[Run],
    marks: Sequence[Mark],
    target: float | None,
) -> Chart:
    """One panel of several runs."""
    curves, said = [], []
    for run, name in ((run, name) for run in runs for name in panel.lines if name in run[1].series):
        called, series = f"{run[0]}, {label(name)}", run[1].series[name]
        finite = series.finite_only()
        if len(finite.steps):
            steps, values = keep_peaks(finite.steps, finite.values, BAND)
            curves.append(Curve(label=label(name), run=run[0], steps=steps, values=clipped(values)))
            if np.abs(values).max() > FARTHEST:
                said.append(f"{called}: values beyond {FARTHEST:.0e} are drawn there.")
        if broken := broken_in(series):
            said.append(f"{called}: {broken}")
    first = panel.lines[0]
    champion = envelope([run.series[first] for run in band if first in run.series]) if curves else None
    around = ((name, spread_of(run.series.get(first), run.series.get(panel.spread))) for name, run in runs)
    return Chart(
        title=panel.title,
        slug=slug,
        unit=panel.unit,
        log=panel.log,
        target=target,
        curves=curves,
        band=None if champion is None else drawable(champion),
        around=[(name, drawable(one)) for name, one in around if one is not None],
        marks=[mark for mark in marks if mark.stream in panel.marked],
        said=said,
    )


def drawable(band: Band) -> Band:
    """A band as a picture can show it."""
    small = thinned(band)
    return Band(steps=small.steps, low=clipped(small.low), high=clipped(small.high))


def clipped(values: Values) -> Values:
    """Values within FARTHEST."""
    return np.clip(values, -FARTHEST, FARTHEST)


def missing_from(runs: Sequence[Run]) -> list[str]:
    """What a reader would look for but no run recorded."""
    return [label(name) for name in PROMISED if not any(name in run.series for run in runs)]
