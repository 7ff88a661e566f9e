"""What charts show, in pictures and on pages: which series, as curves of runs, the champion's band, warnings. Of a long
series no more points than a screen has, with the lowest and highest value of every stretch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from canary_mlflow.gates.model.metrics import METRICS, label
from canary_mlflow.gates.model.records import Run, Series

Steps = NDArray[np.int64]
Values = NDArray[np.float64]

BAND = 400  # points of a band, and of a picture's curves
FARTHEST = 1e100  # matplotlib cannot scale an axis to the largest floats
REST = 40  # further charts; a trainer may log hundreds of series of its own


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart. `lines`: canonical names; the champion's band belongs to the first. `spread`: the spread around it.

    `target`: params that may hold a target value; the first that is set counts. `streams`: further streams whose
    warnings are marked here.
    """

    title: str
    lines: tuple[str, ...]
    spread: str = ""
    log: bool = False
    target: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The unit of its axis; '' for a user-defined series."""
        found = METRICS.get(self.lines[0])
        return "" if found is None else found.unit

    @property
    def marked(self) -> tuple[str, ...]:
        """The streams whose warnings are marked on it."""
        return (*self.lines, *((self.spread,) if self.spread else ()), *self.streams)


PANELS: tuple[Panel, ...] = (
    Panel(title="Loss", lines=("loss", "eval_loss")),
    Panel(title="KL", lines=("kl",), target=("cfg/algo.target_kl", "cfg/target_kl"), streams=("approx_kl",)),
    Panel(title="KL-target error", lines=("kl_target_error",)),
    Panel(title="Entropy", lines=("entropy",)),
    Panel(title="Reward, mean ± spread", lines=("reward_mean",), spread="reward_std", streams=("score_mean",)),
    Panel(title="Advantage, mean ± spread", lines=("advantage_mean",), spread="advantage_std"),
    Panel(title="Reward margin", lines=("reward_margin",)),
    Panel(title="Reward accuracy", lines=("reward_accuracy",)),
    Panel(title="Implied KL", lines=("implied_kl",)),
    Panel(title="Gradient norm", lines=("grad_norm",), log=True, streams=("nonfinite", "clipped")),
    Panel(title="Clip fraction", lines=("clip_fraction", "value_clip_fraction")),
    Panel(title="Value loss", lines=("value_loss",)),
    Panel(title="Learning rate", lines=("learning_rate",)),
    Panel(title="Throughput", lines=("tokens_per_second",)),
    Panel(title="Memory", lines=("peak_memory", "allocated_memory", "reserved_memory")),
    Panel(title="Step time", lines=("step_time",)),
    Panel(title="Iteration time", lines=("iteration_time",)),
)
PROMISED = ("loss", "kl", "kl_target_error", "entropy", "reward_mean", "advantage_mean", "grad_norm", "clip_fraction",
            "tokens_per_second", "peak_memory", "step_time")  # fmt: skip
"""What a reader looks for: said to be missing where a run does not record it."""

SERIES = tuple(dict.fromkeys(name for panel in PANELS for name in (*panel.lines, panel.spread) if name))


GIVEN = ("learning_rate", "kl_coef")
"""Series that follow from settings: where they go, somebody sent them."""


def target_of(panel: Panel, params: Mapping[str, str]) -> float | None:
    """The target value; None if the run's params hold none."""
    for key in panel.target:
        try:
            return float(params[key])
        except (KeyError, ValueError):
            continue
    return None


def target_keys() -> Sequence[str]:
    """All params that a panel may look for."""
    return tuple(dict.fromkeys(key for panel in PANELS for key in panel.target))


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """One series of one run, finite values only. `label`: the series' display name. `run`: the run's."""

    label: str
    run: str
    steps: Steps
    values: Values


@dataclass(frozen=True, kw_only=True, eq=False)
class Band:
    """The lowest and highest value at each step: several runs', or a mean minus and plus one spread."""

    steps: Steps
    low: Values
    high: Values

    def at(self, step: int) -> tuple[float, float] | None:
        """(low, high) at a step, or in the stretch that contains it; None beyond the band's ends."""
        where = int(np.searchsorted(self.steps, step, side="right")) - 1
        if where < 0 or step > int(self.steps[-1]) + (int(self.steps[-1]) - int(self.steps[0])) // len(self.steps):
            return None
        return float(self.low[where]), float(self.high[where])


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A warning on a chart."""

    step: int
    stream: str
    level: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Chart:
    """One picture. `slug`: its name as a file. `said`: sentences about what no curve can show.

    `around`: (run, the spread around its first series), if the panel has one.
    """

    title: str
    slug: str
    unit: str
    log: bool = False
    target: float | None = None
    curves: Sequence[Curve] = ()
    band: Band | None = None
    around: Sequence[tuple[str, Band]] = ()
    marks: Sequence[Mark] = ()
    said: Sequence[str] = ()


def envelope(series: Sequence[Series]) -> Band | None:
    """The lowest and highest value of several series at each step that any of them has; None if none has a finite
    one."""
    finite = [found for one in series if len((found := one.finite_only()).steps)]
    if not finite:
        return None
    steps = np.unique(np.concatenate([one.steps for one in finite]))
    low, high = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    for one in finite:
        at = np.searchsorted(steps, one.steps)
        low[at] = np.minimum(low[at], one.values)
        high[at] = np.maximum(high[at], one.values)
    return Band(steps=steps, low=low, high=high)


def spread_of(mean: Series | None, spread: Series | None) -> Band | None:
    """One spread to each side of the mean, at the steps that have both; None if there are none."""
    if mean is None or spread is None:
        return None
    mean, spread = mean.finite_only(), spread.finite_only()
    steps, here, there = np.intersect1d(mean.steps, spread.steps, return_indices=True)
    low, high = mean.values[here] - spread.values[there], mean.values[here] + spread.values[there]
    return Band(steps=steps, low=low, high=high) if len(steps) else None


def thinned(band: Band) -> Band:
    """At most BAND stretches of a band, each with its lowest low and its highest high, at its first step."""
    n = len(band.steps)
    if n <= BAND:
        return band
    starts = np.linspace(0, n, BAND, endpoint=False).astype(np.int64)
    low, high = np.minimum.reduceat(band.low, starts), np.maximum.reduceat(band.high, starts)
    return Band(steps=band.steps[starts], low=low, high=high)


def keep_peaks(steps: Steps, values: Values, most: int) -> tuple[Steps, Values]:
    """At most `most` (at least 4) of the points, in order: the first, the last, and the lowest and highest of each of
    several equal stretches. Values are finite."""
    n = len(values)
    if n <= most:
        return steps, values
    stretches = (most - 2) // 2
    edges = np.linspace(0, n, stretches + 1).astype(np.int64)
    kept = {0, n - 1}
    for start, end in pairwise(edges):
        part = values[start:end]
        kept.update((int(start + part.argmin()), int(start + part.argmax())))
    at = np.array(sorted(kept))
    return steps[at], values[at]


def keep_means(steps: Steps, values: Values, most: int) -> tuple[Steps, Values, Values, Values]:
    """(steps, means, lowest, highest) of at most `most` stretches, each at its last step. The last value is a stretch
    by itself. Values are finite, and more than `most`."""
    starts = np.append(np.linspace(0, len(values) - 1, most - 1, endpoint=False).astype(np.int64), len(values) - 1)
    counts = np.diff(np.append(starts, len(values)))
    mean = np.add.reduceat(values, starts) / counts
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return steps[starts + counts - 1], mean, low, high


def broken_in(series: Series) -> str:
    """The sentence under a chart whose series is not all numbers; '' if it is."""
    broken = series.steps[~series.finite]
    if not len(broken):
        return ""
    if len(broken) == len(series.steps):
        return f"No finite number in {len(broken)} values (NaN or infinity), from step {broken[0]} on."
    return f"{len(broken)} of {len(series.steps)} values are NaN or infinity, the first at step {broken[0]}."


# ---- a study's charts ------------------------------------------------------------------------------------------------


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
