"""Draws the tables of benchmarks/gate.py: what each judge gets wrong, and what it finds, on the same simulated runs.

python benchmarks/gate_pictures.py [--tables docs/measured/judge.md] [--write docs/measured/gate-judges.svg]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gate_data import NOISE, STEPS  # noqa: E402  # the path is set above
from gate_tables import around_marks, read_simulated_tables  # noqa: E402

COLOURS = {"smoke": "#0072b2", "perf": "#d55e00", "nightly": "#009e73"}
MARKS = dict(zip(NOISE, ("o", "s", "^", "x"), strict=True))
SPREADS = {noise: f"{noise}, {100 * values[0]:.0f} %" for noise, values in NOISE.items()}
PANELS = (
    ("unchanged", "BLOCK", "unchanged code blocked, %\n(0 is right)"),
    ("at the margin", "PASS", "harm at the margin passed, %\n(5 is what a test of 5 % may)"),
    ("1.5 margins", "BLOCK", "harm of 1.5 margins blocked, %\n(100 is right)"),
)


def draw_judges(grid: dict[str, Any], path: Path) -> None:
    """Write an SVG with a row per judge and a dot per tier and noise; equal numbers give equal bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams |= {"svg.hashsalt": "canary", "svg.fonttype": "none", "font.size": 9}
    judges = list(next(iter(grid.values())))[::-1]
    figure = Figure(figsize=(10.0, 4.6), layout="constrained")
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (effect, word, title) in zip(panels, PANELS, strict=True):
        _panel(axes, grid, judges, effect, word)
        axes.set(title=title, xlim=(-3, 103), ylim=(-0.6, len(judges) - 0.4))
        axes.grid(axis="x", alpha=0.25)
        for spine in ("top", "right"):
            axes.spines[spine].set_visible(False)
    panels[0].set_yticks(range(len(judges)), judges)
    for label, judge in zip(panels[0].get_yticklabels(), judges, strict=True):
        label.set_fontweight("bold" if judge.startswith("ours") else "normal")
    _legend(figure)
    figure.savefig(path, format="svg", metadata={"Date": None})


def _panel(axes: Any, grid: dict[str, Any], judges: list[str], effect: str, word: str) -> None:
    for row, judge in enumerate(judges):
        for at, tier in enumerate(STEPS):
            for noise in NOISE:
                share = 100 * grid[f"{tier} {noise}"][judge][effect].get(word, 0.0)
                height = row + 0.22 * (1 - at)
                axes.plot(share, height, MARKS[noise], color=COLOURS[tier], markersize=4, alpha=0.75)


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D

    keys = [Line2D([], [], color=colour, linewidth=4, label=tier) for tier, colour in COLOURS.items()]
    keys += [
        Line2D([], [], color="0.3", marker=mark, linestyle="", label=SPREADS[noise]) for noise, mark in MARKS.items()
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=ROOT / "docs" / "measured" / "judge.md")
    parser.add_argument("--write", type=Path, default=ROOT / "docs" / "measured" / "gate-judges.svg")
    asked = parser.parse_args()
    _, tables, _ = around_marks(asked.tables, "benchmarks/gate.py")
    draw_judges(read_simulated_tables(tables), asked.write)


if __name__ == "__main__":
    main()
