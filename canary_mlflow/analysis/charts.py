"""The pictures of a study: the panels of the live page first, then every other series that changes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from canary_mlflow.analysis.bands import envelope, said_of
from canary_mlflow.analysis.downsampling import keep_envelope, keep_peaks
from canary_mlflow.reports.charts import Chart, Curve, Mark, Range
from canary_mlflow.reports.panels import PANELS, PROMISED, SERIES, Panel, label, target_of
from gates.model.metrics import METRICS
from gates.model.records import Run, Series

MOST = 400  # points of a curve: more than a picture of this width shows
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
    panels = [*PANELS, *(rest_of([run for _, run in runs]) if rest else ())]
    charts = (chart_of(panel, runs, band, marks, target_of(panel, params)) for panel in panels)
    return list(told_apart(chart for chart in charts if chart.curves or chart.said))


def told_apart(charts: Iterable[Chart]) -> Iterator[Chart]:
    """The charts with unique slugs: a trainer may log both `a/b` and `a_b`."""
    often: Counter[str] = Counter()
    for chart in charts:
        often[chart.slug] += 1
        number = often[chart.slug]
        yield chart if number == 1 else replace(chart, slug=f"{chart.slug}--{number}")


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
    panel: Panel, runs: Sequence[tuple[str, Run]], band: Sequence[Run], marks: Sequence[Mark], target: float | None
) -> Chart:
    """One panel of several runs."""
    shown = panel.lines
    curves, said = [], []
    for run, found in runs:
        for name in shown:
            if name not in found.series:
                continue
            whole, finite = found.series[name], found.series[name].finite_only()
            if len(finite.steps):
                steps, values = keep_peaks(finite.steps, finite.values, MOST)
                drawn = np.clip(values, -FARTHEST, FARTHEST)
                curves.append(Curve(name=name, label=label(name), run=run, steps=steps, values=drawn))
                if not np.array_equal(drawn, values):
                    said.append(f"{run}, {label(name)}: values beyond {FARTHEST:.0e} are drawn there.")
            if broken := len(whole.steps) - len(finite.steps):
                first = int(whole.steps[~whole.finite][0])
                said.append(f"{run}, {label(name)}: {said_of(broken, len(whole.steps), first)}")
    return Chart(
        title=panel.title,
        slug=re.sub(r"[^a-z0-9]+", "-", panel.title.lower()).strip("-")[:60] or "series",
        unit=METRICS[shown[0]].unit if shown[0] in METRICS else "",
        log=panel.log,
        target=target,
        curves=curves,
        band=range_of(shown[0], band) if curves else None,
        around=[(run, one) for run, found in runs if (one := spread_of(panel, found)) is not None],
        marks=[mark for mark in marks if mark.stream in panel.marked],
        said=said,
    )


def spread_of(panel: Panel, run: Run) -> Range | None:
    """One spread to each side of the mean, at the steps that have both."""
    if panel.spread not in run.series or panel.lines[0] not in run.series:
        return None
    mean, spread = (run.series[name].finite_only() for name in (panel.lines[0], panel.spread))
    steps, here, there = np.intersect1d(mean.steps, spread.steps, return_indices=True)
    if not len(steps):
        return None
    low = np.clip(mean.values[here] - spread.values[there], -FARTHEST, FARTHEST)
    high = np.clip(mean.values[here] + spread.values[there], -FARTHEST, FARTHEST)
    steps, low, high = keep_envelope(steps, low, high, MOST)
    return Range(steps=steps, low=low, high=high)


def range_of(name: str, runs: Sequence[Run]) -> Range | None:
    """The champion's range of a series; None if none of its runs has it."""
    having = [run.series[name] for run in runs if name in run.series and run.series[name].finite.any()]
    if not having:
        return None
    found = envelope(having)
    low, high = (np.clip(end, -FARTHEST, FARTHEST) for end in (found.low, found.high))
    return Range(steps=found.steps, low=low, high=high)


def missing_from(runs: Sequence[Run]) -> list[str]:
    """What a reader would look for but no run recorded."""
    return [label(name) for name in PROMISED if not any(name in run.series for run in runs)]
