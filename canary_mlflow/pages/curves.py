"""Series as a browser draws them, with no more points than a screen needs: lines, bands, clocks, strips; and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from canary_mlflow.gates.model.metrics import LAYER_GROUPS, METRICS
from canary_mlflow.gates.model.records import Series
from canary_mlflow.pages.requests import runs_database
from canary_mlflow.pages.series import read_series
from canary_mlflow.reports.charts import (
    BAND,
    PANELS,
    Band,
    Steps,
    Values,
    broken_in,
    keep_means,
    keep_peaks,
    spread_of,
    thinned,
)
from canary_mlflow.tracking.describing.schema import mlflow_key
from canary_mlflow.tracking.reading.database import points_over
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.reading.records import in_order, series_of
from canary_mlflow.tracking.stores.read_only import reading

MOST = 2 * BAND  # points of one curve: more than a chart has pixels on most screens
EVERY_STEP = ("step_time", "loss", "learning_rate")  # the first one that a run has gives the times of its steps
STARTS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r")


# ---- lines and bands -------------------------------------------------------------------------------------------------


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
        return curve(series)
    steps, mean, low, high = keep_means(finite.steps, finite.values, MOST // 2)
    return {"steps": steps.tolist(), "values": figures(mean), "low": figures(low), "high": figures(high),
            **broken_of(series)}  # fmt: skip


def broken_of(series: Series) -> dict[str, Any]:
    """The steps whose values are not finite, enough to mark where they are, and a sentence on them; empty if all are
    finite."""
    broken = series.steps[~series.finite]
    if not len(broken):
        return {}
    some = sorted({*map(int, broken[:: max(1, len(broken) // 100)]), int(broken[-1])})
    return {"broken": some, "said": broken_in(series)}


def spreads(series: Mapping[str, Series]) -> dict[str, Any]:
    """Mean minus and plus spread, for panels that have both."""
    both = ((panel.lines[0], series.get(panel.lines[0]), series.get(panel.spread)) for panel in PANELS)
    found = ((name, spread_of(mean, spread)) for name, mean, spread in both)
    return {name: as_json(thinned(band)) for name, band in found if band is not None}


def figures(values: Values) -> list[float]:
    """The values to six significant digits: no screen shows more."""
    return [float(f"{value:.6g}") for value in values]


def as_json(band: Band) -> dict[str, Any]:
    """A band as JSON values."""
    return {"steps": band.steps.tolist(), "low": figures(band.low), "high": figures(band.high)}


# ---- the other two axes ----------------------------------------------------------------------------------------------


def clocks_of(runs: Sequence[RunFacts]) -> dict[str, Any]:
    """By run: `steps`, `seconds` since its first row, and `tokens` in total, None if a run records none. A run
    without rows has no clock. Time between two points is interpolated."""
    told = {run.run_id: key for run in runs if (key := next(filter(run.latest.get, map(mlflow_key, EVERY_STEP)), ""))}
    tokens = mlflow_key("tokens")
    found = points_over(runs_database(), {run_id: [key, tokens] for run_id, key in told.items()})
    made = {}
    for run_id, key in told.items():
        rows, counted = found[run_id][key], series_of("tokens", found[run_id][tokens]).finite_only()
        if not len(rows):
            continue
        rows = in_order(rows)
        steps, first = np.unique(rows[:, 0].astype(np.int64), return_index=True)
        seconds = np.maximum.accumulate((rows[first, 1] - rows[first[0], 1]) / 1000)
        summed = in_all(steps, counted.steps, counted.values) if len(counted.steps) else None
        keep = np.unique(np.linspace(0, len(steps) - 1, min(BAND, len(steps))).astype(np.int64))
        made[run_id] = {
            "steps": steps[keep].tolist(),
            "seconds": figures(seconds[keep]),
            "tokens": None if summed is None else figures(summed[keep]),
        }
    return made


def in_all(steps: Steps, counted: Steps, tokens: Values) -> Values:
    """Tokens up to each step; a step without a count is taken to have as many as the one before."""
    each = tokens[np.maximum(np.searchsorted(counted, steps, side="right") - 1, 0)]
    return np.asarray(np.cumsum(each * np.diff(steps, prepend=steps[0] - 1)))


def middle(clocks: Mapping[str, Any]) -> dict[str, Any] | None:
    """One clock for a band of several runs: that of the run with the middle time; None if there is no clock."""
    ordered = sorted(clocks.values(), key=lambda clock: (len(clock["steps"]), clock["seconds"][-1]))
    return ordered[len(ordered) // 2] if ordered else None


# ---- strips ----------------------------------------------------------------------------------------------------------

OF_ITERATIONS = ("time_generate", "time_reward", "time_reference", "time_score", "time_update")
OF_STEPS = ("time_generate", "time_reward", "time_reference", "time_forward", "time_backward", "time_optimizer",
            "data_wait")  # fmt: skip
HEAT = {
    METRICS["reward_mean"].label: ("reward_mean",),
    METRICS["response_length"].label: ("response_length",),
    "gradient norm, by group of layers": tuple(f"grad_norm_{where}" for where in LAYER_GROUPS),
}


@dataclass(frozen=True, kw_only=True)
class Strip:
    """One figure, a row per run. `shares`: its series are parts of a whole, stacked; otherwise each has a row and is
    shown as a shade. `inside`: two of its series, the first of which is also part of the second and is subtracted."""

    title: str
    names: tuple[str, ...]
    shares: bool = False
    inside: tuple[str, str] | None = None

    @property
    def labels(self) -> Sequence[str]:
        """The display names of its series."""
        return [name.removeprefix("time_").removeprefix("grad_norm_").replace("_", " ") for name in self.names]

    @property
    def unit(self) -> str:
        """The unit of its first series."""
        return METRICS[self.names[0]].unit

    @property
    def log(self) -> bool:
        """Whether the shade follows the logarithm."""
        return METRICS[self.names[0]].scale == "log"


def strips_of(recorded: Collection[str]) -> list[Strip]:
    """Where the runs' time went, and values that tell them apart, of the series that were recorded. A trainer that
    times its iterations has phases of iterations, not of steps; the passes of the reference model are part of its
    scoring."""
    own = "time_update" in recorded
    phases = tuple(name for name in (OF_ITERATIONS if own else OF_STEPS) if name in recorded)
    both = ("time_reference", "time_score")
    inside = both if own and set(both) <= set(phases) else None
    what = "an iteration" if own else "a step"
    found = [Strip(title=f"Time of {what}, by phase", names=phases, shares=True, inside=inside)]
    having = {title: tuple(name for name in names if name in recorded) for title, names in HEAT.items()}
    heat = [Strip(title=title, names=names) for title, names in having.items() if names]
    return [*(found if len(phases) > 1 else []), *heat]


# ---- CSV -------------------------------------------------------------------------------------------------------------


def csv_lines(tracking: str, runs: Sequence[tuple[str, str]], names: Sequence[str]) -> Iterator[str]:
    """A header line, then one line for each step of each run (id, name), every recorded row. Only one run at a time is
    in memory; the request is over by then, so each has a connection of its own."""
    yield line(["run", "name", "step", *map(text, names)])
    for run_id, name in runs:
        with reading(tracking) as connection:
            series = read_series(connection, [run_id], names)[run_id]
        if not series:
            continue
        steps = np.unique(np.concatenate([one.steps for one in series.values()]))
        cells: list[list[str]] = []
        for wanted in names:
            column = [""] * len(steps)
            if wanted in series:
                at = np.searchsorted(steps, series[wanted].steps)
                for where, value in zip(at.tolist(), series[wanted].values.tolist(), strict=True):
                    column[where] = repr(value)
            cells.append(column)
        for step, *values in zip(steps.tolist(), *cells, strict=True):
            yield line([run_id, text(name), str(step), *values])


def text(word: str) -> str:
    """A name that no spreadsheet reads as a formula."""
    return f"'{word}" if word.startswith(STARTS_A_FORMULA) else word


def line(cells: Sequence[str]) -> str:
    """One CSV line, quoted where necessary."""
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerow(cells)
    return made.getvalue()
