"""A chart as SVG that follows the reader's light or dark setting.

Written as text, because each session's end draws ten: matplotlib takes a quarter of a second to load and 35 ms for
each, this half a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from canary_mlflow.reports.charts import Chart, Curve, Mark, Range
from canary_mlflow.reports.pictures import BAD, BAND, INK, NAMED, PAPER, RUNS, SOFT, STYLES, WARN, clean, unique

DARK = {
    INK: "#e8eaee", SOFT: "#a5acb8", PAPER: "#1b1e24", WARN: "#f3c065", BAD: "#ff8f8f", BAND: "#a5acb9",
    **dict(zip(RUNS, ("#6aa5ff", "#f0a35a", "#c9a6f5", "#76d3ea", "#6fd99a", "#ff8fc0", "#d9c64a", "#b9bfca"),
               strict=True)),
}  # fmt: skip
TINT = {colour: f"var(--c{number})" for number, colour in enumerate(DARK)}
DASHES = dict(zip(STYLES, ("", "6 2.5", "1.5 2.5", "6 2 1.5 2"), strict=True))
WIDTH, HEIGHT = 640, 270
LEFT, TOP, WIDE, HIGH = 64, 44, 560, 184  # of the box in which curves are drawn
MARGIN = 0.05  # between the curves and the edge of the box, as a share of their extent
TICKS = 5
LETTER = 5.8  # width of a small letter
COLUMNS, ROW = 5, 12  # of the legend
TINY = 1e-290  # what is not above 0 has no logarithm
Floats = NDArray[np.float64]


def svg(chart: Chart) -> str:
    """A chart with at least one curve, in two sets of colours from which the reader's browser chooses."""
    names, runs = unique(one.label for one in chart.curves), unique(one.run for one in chart.curves)
    x, y = axes_of(chart)
    light = "".join(f"--c{number}:{colour};" for number, colour in enumerate(DARK))
    dark = "".join(f"--c{number}:{colour};" for number, colour in enumerate(DARK.values()))
    style = (
        f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"text{{font:12px 'DejaVu Sans',Verdana,sans-serif;fill:{TINT[SOFT]}}}.small{{font-size:9.5px}}"
        f"polyline,line,path{{fill:none;stroke-width:1.4}}.grid{{stroke:{TINT[SOFT]};opacity:.25;stroke-width:.8}}"
    )
    parts = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f'<style>{style}</style><rect width="{WIDTH}" height="{HEIGHT}" style="fill:{TINT[PAPER]}"/>',
        *scales(x, y),
        f'<svg x="{LEFT}" y="{TOP}" width="{WIDE}" height="{HIGH}">',  # an inner picture shows nothing beyond its edge
        *box(chart, x, y, names, runs),
        "</svg>",
        *(mark(one, x) for one in chart.marks),
        *words(chart, names, runs),
        "</svg>",
    )
    return "".join(parts)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What is at the two ends of an axis of `size` units; with `log` their logarithms to base 10."""

    low: float
    high: float
    size: int
    log: bool = False

    def at(self, values: Any) -> Floats:
        """Where values are, from the lower end on; what has no logarithm is far below it."""
        scaled = np.log10(np.maximum(values, TINY)) if self.log else np.asarray(values, dtype=np.float64)
        share = (scaled / 2 - self.low / 2) / (self.high / 2 - self.low / 2)  # halves: a difference may overflow
        return np.clip(share, -9, 9) * self.size

    def ticks(self) -> list[float]:
        """A few round values between the ends."""
        if not self.log:
            return round_values(self.low, self.high)
        subs = (1, 2, 5) if self.high - self.low < 3 else (1,)
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        found = [sub * 10.0**power for power in powers[:: max(1, len(powers) // TICKS)] for sub in subs]
        found = [one for one in found if self.low <= math.log10(one) <= self.high]
        return found if len(found) > 1 else round_values(10.0**self.low, 10.0**self.high)


def axes_of(chart: Chart) -> tuple[Axis, Axis]:
    """Both axes of a chart: all that it draws is between their ends. Logarithmic only where all curves allow it."""
    ranges = [*([chart.band] if chart.band is not None else ()), *(one for _, one in chart.around)]
    steps = [one.steps for one in (*chart.curves, *ranges)] + [np.array([one.step for one in chart.marks])]
    values = [one.values for one in chart.curves] + [end for one in ranges for end in (one.low, one.high)]
    if chart.target is not None:
        values.append(np.array([chart.target]))
    heights = np.concatenate(values)
    log = chart.log and all((one.values > 0).all() for one in chart.curves)
    if log:
        heights = np.log10(np.maximum(heights[heights > 0], TINY))
    return axis(np.concatenate(steps).astype(np.float64), WIDE), axis(heights, HIGH, log=log)


def axis(values: Floats, size: int, *, log: bool = False) -> Axis:
    """An axis with a margin around its finite values, or around the only one."""
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    largest = max(abs(low), abs(high))
    margin = MARGIN * (high - low) if high - low > 1e-9 * largest else MARGIN * (largest or 1.0)
    return Axis(low=low - margin, high=high + margin, size=size, log=log)


def round_values(low: float, high: float) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten, at most six."""
    least = high / TICKS - low / TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= least * (1 - 1e-9))
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def scales(x: Axis, y: Axis) -> Iterator[str]:
    """The grid, the values beside it, and the two axes."""
    bottom = TOP + HIGH
    for value, at in zip(ticks := x.ticks(), LEFT + x.at(ticks), strict=True):
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}"/>'
        yield text(f"{value:.8g}", at, bottom + 15, anchor="middle")
    for value, at in zip(ticks := y.ticks(), bottom - y.at(ticks), strict=True):
        yield f'<line class="grid" x1="{LEFT}" x2="{LEFT + WIDE}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield text(f"{value:.8g}", LEFT - 6, at + 4, anchor="end")
    yield f'<path d="M{LEFT} {TOP}V{bottom}H{LEFT + WIDE}" style="stroke:{TINT[SOFT]};stroke-width:1"/>'
    yield text("step", LEFT + WIDE, bottom + 31, anchor="end")


def box(chart: Chart, x: Axis, y: Axis, names: Sequence[str], runs: Sequence[str]) -> Iterator[str]:
    """Band, spreads, target, curves."""
    if chart.band is not None:  # with an edge, because the band of one run is only a line
        yield area(chart.band, x, y, BAND, "fill-opacity:.3;stroke-opacity:.3")
    for run, around in chart.around:
        yield area(around, x, y, colour_of(run, runs), "fill-opacity:.12;stroke:none")
    if chart.target is not None:
        yield polyline([0.0, WIDE], [HIGH - float(y.at(chart.target))] * 2, SOFT, DASHES["--"])
    for one in chart.curves:
        yield curve(one, x, y, colour_of(one.run, runs), DASHES[STYLES[names.index(one.label) % len(STYLES)]])


def colour_of(run: str, runs: Sequence[str]) -> str:
    """The colour of a run."""
    return RUNS[runs.index(run) % len(RUNS)]


def curve(one: Curve, x: Axis, y: Axis, colour: str, dashes: str) -> str:
    """The line through a curve's points, or its only point."""
    across, up = x.at(one.steps), HIGH - y.at(one.values)
    if len(across) == 1:
        return f'<circle cx="{across[0]:.1f}" cy="{up[0]:.1f}" r="3" style="fill:{TINT[colour]}"/>'
    return polyline(across.tolist(), up.tolist(), colour, dashes)


def polyline(across: Sequence[float], up: Sequence[float], colour: str, dashes: str) -> str:
    """A line through points."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{points(across, up)}" style="stroke:{TINT[colour]}"{dashed}/>'


def area(found: Range, x: Axis, y: Axis, colour: str, style: str) -> str:
    """The area between the low and the high values."""
    across, low, high = x.at(found.steps), HIGH - y.at(found.low), HIGH - y.at(found.high)
    around = points([*across, *across[::-1]], [*high, *low[::-1]])
    tint = f"fill:{TINT[colour]};stroke:{TINT[colour]};stroke-width:1"
    return f'<polygon points="{around}" style="{tint};{style}"/>'


def points(across: Sequence[float], up: Sequence[float]) -> str:
    """Points as SVG takes them, to a tenth of a unit."""
    return " ".join([f"{left:.1f},{top:.1f}" for left, top in zip(across, up, strict=True)])


def mark(one: Mark, x: Axis) -> str:
    """A warning: a dotted line, with an arrow at its top."""
    colour, at = WARN if one.level == "WARN" else BAD, LEFT + float(x.at(one.step))
    line = f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{TOP + HIGH}" style="stroke:{TINT[colour]}"'
    arrow = f'<path d="M{at:.1f} {TOP + 4}l-4 -8h8z" style="fill:{TINT[colour]}"/>'
    return f'{line} stroke-dasharray="{DASHES[":"]}"/>{arrow}'


def words(chart: Chart, names: Sequence[str], runs: Sequence[str]) -> Iterator[str]:
    """The title, and above the box to the right what the lines mean: a legend inside would cover curves."""
    unit = f" ({chart.unit})" if chart.unit else ""
    yield text(clean(f"{chart.title}{unit}"), LEFT, TOP - 7, style=f"font-size:13.5px;fill:{TINT[INK]}")
    entries = list(legend(chart, names, runs))
    rows = [entries[start : start + COLUMNS] for start in range(0, len(entries), COLUMNS)]
    for at, row in enumerate(reversed(rows)):
        right, height = float(LEFT + WIDE), TOP - 8 - ROW * at
        for sample, said in reversed(row):
            right -= LETTER * len(said) + 6
            yield text(said, right, height, style=f"fill:{TINT[INK]}", kind="small")
            right -= 26
            yield f'<g transform="translate({right:.1f} {height - 3})">{sample}</g>' if sample else ""


def legend(chart: Chart, names: Sequence[str], runs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(sample, word): runs by colour, series by stroke if there are several, band and target."""

    def line(colour: str, dashes: str = "") -> str:
        return polyline([0.0, 20.0], [0.0, 0.0], colour, dashes)

    for run, colour in zip(runs[:NAMED], RUNS, strict=False):
        yield line(colour), clean(run, 18)
    if len(runs) > NAMED:
        yield "", f"and {len(runs) - NAMED} more"
    if len(names) > 1:
        for name, style in zip(names, STYLES, strict=False):
            yield line(SOFT, DASHES[style]), clean(name, 24)
    if chart.band is not None:
        yield f'<rect y="-4" width="20" height="8" style="fill:{TINT[BAND]};opacity:.3"/>', "baseline"
    if chart.target is not None:
        yield line(SOFT, DASHES["--"]), "target"


def text(said: str, x: float, y: float, *, anchor: str = "start", style: str = "", kind: str = "") -> str:
    """A piece of text at a place."""
    given = f' class="{kind}"' if kind else ""
    given += f' style="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{given}>{escape(said)}</text>'
