"""The chances of BLOCK and PASS by true harm, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gates.stats.power import Chances

CURVE = tuple(step / 20 for step in range(61))
"""True harm, in margins."""
COLOURS = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#084594", "#041f4a", "#000000")


def drawable(path: Path) -> bool:
    """Whether matplotlib can write a file with this suffix."""
    from matplotlib.backend_bases import FigureCanvasBase

    return path.suffix.removeprefix(".").lower() in FigureCanvasBase.get_supported_filetypes()


def draw(chances: Sequence[Chances], title: str, path: Path) -> None:
    """Write a PNG, or another `drawable` format by the file's suffix: one line per number of runs, BLOCK on the left,
    PASS on the right. matplotlib comes with MLflow. Raises OSError."""
    from matplotlib.figure import Figure  # without pyplot: no display, nothing global

    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for each, colour in zip(chances, COLOURS, strict=False):
        harms = [effect * each.rule.harm_margin for effect in CURVE]
        label = f"{each.baseline_runs} + {each.candidate_runs}"
        left.plot(CURVE, [each.block(harm) for harm in harms], color=colour, label=label)
        right.plot(CURVE, [each.passed(harm) for harm in harms], color=colour)
    for axes, word in ((left, "BLOCK"), (right, "PASS")):
        axes.axvline(1.0, color="0.6", linestyle=":", linewidth=1)
        axes.set(title=f"chance of {word}", xlabel="true harm, in margins", ylim=(-0.02, 1.02))
        axes.grid(alpha=0.25)
    right.legend(*left.get_legend_handles_labels(), title="runs: baseline + candidate", fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
