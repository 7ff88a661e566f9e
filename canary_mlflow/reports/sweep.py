"""A sweep as a grid: a row for each cell, named by what differs, with its metrics and its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from canary_mlflow.reports import figures
from gates.model.metrics import METRICS

COLUMNS = 4  # metrics that there is room for


@dataclass(frozen=True, kw_only=True)
class GridRow:
    """One cell. `latest`: the last values of each of its runs, by metric; `word`, `reason`: its verdict, or none."""

    name: str
    latest: Sequence[Mapping[str, float]]
    word: str
    reason: str

    def cells(self, columns: Sequence[str]) -> list[str]:
        """The mean of each metric over the runs that have it, as text."""
        held = [[values[name] for values in self.latest if name in values] for name in columns]
        return [
            figures.quantity(sum(found) / len(found) if found else None, METRICS[name].unit)
            for name, found in zip(columns, held, strict=True)
        ]


def columns(rows: Sequence[GridRow]) -> list[str]:
    """The metrics to show, which say what was learned: evaluations, then rewards and losses, as far as recorded."""
    known = {name for row in rows for values in row.latest for name in values}
    told = [one for one in METRICS.values() if one.group == "quality" or one.reward or one.training_loss]
    told.sort(key=lambda one: (one.group != "quality", not one.reward))
    return [one.name for one in told if one.name in known][:COLUMNS]


def grid(rows: Sequence[GridRow]) -> str:
    """The grid as aligned text."""
    names = columns(rows)
    lines = [["cell", "verdict", *names, "why"]]
    lines += [[row.name, row.word, *row.cells(names), " ".join(row.reason.split())] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
