"""A study's charts as pictures: PNG files, and SVG that follows the reader's light or dark setting."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from canary_mlflow.reports.charts import Chart
from canary_mlflow.reports.study import Correlation, Study
from canary_mlflow.shown import visible

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (6.4, 2.7)  # inches
NAMED = 4  # runs that the legend names
INK, SOFT, PAPER, WARN, BAD, BAND = "#1d1f24", "#5b616e", "#ffffff", "#855400", "#b3181d", "#5a6270"
RUNS = ("#1f6feb", "#b35900", "#6b3fa1", "#0b6a84", "#11713a", "#a3195b", "#7a6a00", "#4a4f5a")
DARK = {
    INK: "#e8eaee", SOFT: "#a5acb8", PAPER: "#1b1e24", WARN: "#f3c065", BAD: "#ff8f8f", BAND: "#a5acb9",
    **dict(zip(RUNS, ("#6aa5ff", "#f0a35a", "#c9a6f5", "#76d3ea", "#6fd99a", "#ff8fc0", "#d9c64a", "#b9bfca"),
               strict=True)),
}  # fmt: skip
STYLES: Any = ("-", "--", ":", "-.")  # one for each series of a chart
SETTINGS: Any = {  # Any: matplotlib's type lists every key there is
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "canary",  # the same picture from the same numbers
    "text.parse_math": False,  # a run may be called $x$
    "font.size": 9,
    "axes.titley": 1.0,  # fixed, because the search for free room above the axes takes a sixth of the time
    "axes.edgecolor": SOFT, "axes.labelcolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT, "text.color": INK,
    "figure.facecolor": PAPER, "axes.facecolor": PAPER, "legend.facecolor": PAPER, "legend.framealpha": 0.7,
}  # fmt: skip


def pictures(study: Study) -> Iterator[tuple[str, bytes]]:
    """(file name, PNG) of each chart that has a curve, and of the correlation. Imports matplotlib."""
    for chart in study.charts:
        if chart.curves:
            with drawn(chart) as figure:
                yield f"{chart.slug}.png", saved(figure, "png")
    if study.correlation.names:
        with settings():
            yield "correlation.png", saved(heat(study.correlation), "png")


def svg(chart: Chart) -> str:
    """A chart as SVG in two sets of colours, from which the reader's browser chooses."""
    with drawn(chart) as figure:
        text = saved(figure, "svg").decode()
    text = text[text.index("<svg") :]  # without the prolog
    for number, colour in enumerate(DARK):
        text = text.replace(colour, f"var(--c{number})")
    light = "".join(f"--c{number}:{colour};" for number, colour in enumerate(DARK))
    dark = "".join(f"--c{number}:{colour};" for number, colour in enumerate(DARK.values()))
    style = f"<style>:root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    head = text.index(">") + 1
    return f"{text[:head]}{style}{text[head:]}"


@contextmanager
def settings() -> Iterator[None]:
    """Apply our settings inside a `with`, and silence warnings about letters that no font has."""
    from matplotlib import rc_context

    with rc_context(SETTINGS), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def drawn(chart: Chart) -> Iterator[Figure]:
    """The chart as a separate figure: no pyplot, no display, nothing global."""
    from matplotlib.figure import Figure

    with settings():
        figure = Figure(figsize=SIZE)
        draw(figure.add_axes((0.1, 0.16, 0.875, 0.68)), chart)
        yield figure


def draw(axes: Axes, chart: Chart) -> None:
    """Draw band, target, curves and marks."""
    names, runs = unique(one.label for one in chart.curves), unique(one.run for one in chart.curves)
    if chart.band is not None:  # with an edge, because the band of one run is only a line
        axes.fill_between(chart.band.steps, chart.band.low, chart.band.high, color=BAND, alpha=0.3, linewidth=0.8)
    for run, around in chart.around:
        colour = RUNS[runs.index(run) % len(RUNS)]
        axes.fill_between(around.steps, around.low, around.high, color=colour, alpha=0.12, linewidth=0)
    if chart.target is not None:
        axes.axhline(chart.target, color=SOFT, linestyle="--", linewidth=0.8)
    for one in chart.curves:
        colour, style = RUNS[runs.index(one.run) % len(RUNS)], STYLES[names.index(one.label) % len(STYLES)]
        dot = "o" if len(one.steps) == 1 else ""
        axes.plot(one.steps, one.values, color=colour, linestyle=style, linewidth=1.1, marker=dot, markersize=4)
    for mark in chart.marks:
        colour = WARN if mark.level == "WARN" else BAD
        axes.axvline(mark.step, color=colour, linestyle=":", linewidth=1)
        axes.plot([mark.step], [1.0], marker="v", color=colour, markersize=6, clip_on=False,
                  transform=axes.get_xaxis_transform())  # fmt: skip
    if chart.log and all((one.values > 0).all() for one in chart.curves):
        logarithmic(axes)
    else:
        axes.locator_params(axis="y", nbins=5)
    axes.locator_params(axis="x", nbins=5)
    finish(axes, chart, runs, names)


def finish(axes: Axes, chart: Chart, runs: Sequence[str], names: Sequence[str]) -> None:
    """Add the title, axes in plain figures, and the legend above them: a box inside would cover curves."""
    from matplotlib.ticker import FuncFormatter

    unit = f" ({chart.unit})" if chart.unit else ""
    axes.set_title(clean(f"{chart.title}{unit}"), loc="left", fontsize=10)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.8g}"))  # no 1e-5 beside the title
    axes.set_xlabel("step", loc="right")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_label_coords(1.0, -0.12)  # fixed, as the title's: else each label beside the axis is measured again
    axes.grid(color=SOFT, alpha=0.2, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(handles=meanings(chart, runs, names), fontsize=7, ncols=5, loc="lower right", frameon=False,
                bbox_to_anchor=(1.0, 0.98), borderpad=0, columnspacing=1, handlelength=1.6)  # fmt: skip


def meanings(chart: Chart, runs: Sequence[str], names: Sequence[str]) -> list[Artist]:
    """The legend's entries: runs by colour, series by stroke if there are several, band and target."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: list[Artist] = [Line2D([], [], color=RUNS[n], label=clean(run, 18)) for n, run in enumerate(runs[:NAMED])]
    if len(runs) > NAMED:
        found.append(Line2D([], [], color="none", label=f"and {len(runs) - NAMED} more"))
    if len(names) > 1:
        named = zip(names, STYLES, strict=False)
        found += [Line2D([], [], color=SOFT, linestyle=style, label=clean(name, 24)) for name, style in named]
    if chart.band is not None:
        found.append(Patch(color=BAND, alpha=0.3, label="baseline"))
    if chart.target is not None:
        found.append(Line2D([], [], color=SOFT, linestyle="--", linewidth=0.8, label="target"))
    return found


def logarithmic(axes: Axes) -> None:
    """Make the axis logarithmic, with ticks between the powers of ten if it spans few of them."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    axes.yaxis.set_minor_locator(NullLocator())


def heat(found: Correlation) -> Figure:
    """The correlation as a coloured square with its figures."""
    from matplotlib.figure import Figure

    side = 2.5 + 0.45 * len(found.names)
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.subplots()
    values = np.array([[np.nan if cell is None else cell for cell in row] for row in found.rows])
    axes.imshow(values, vmin=-1, vmax=1, cmap="RdBu")
    axes.set_xticks(range(len(found.names)), [clean(name) for name in found.names], rotation=90)
    axes.set_yticks(range(len(found.names)), [clean(name) for name in found.names])
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "#ffffff" if abs(value) > 0.6 else INK
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6, color=colour)
    axes.set_title(f"Spearman's rank correlation, mean of {found.runs}", loc="left", fontsize=10)
    return figure


def clean(text: str, most: int = 60) -> str:
    """Text that XML and fonts can show, at most `most` characters."""
    return visible(text, most=most)[:most]


def unique(names: Iterator[str]) -> Sequence[str]:
    """Each name once, in order of first appearance."""
    return list(dict.fromkeys(names))


def saved(figure: Figure, kind: str) -> bytes:
    """The figure as a file's bytes, without the date, so that the same numbers give the same file."""
    out = io.BytesIO()
    figure.savefig(out, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()
