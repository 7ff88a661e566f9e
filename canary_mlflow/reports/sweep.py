"""A sweep as a grid: a row for each cell, named by what differs, with its metrics and its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from canary_mlflow.reports import figures, wording
from canary_mlflow.reports.decision import Decision
from gates.model.metrics import METRICS

COLUMNS = 4  # metrics that there is room for
LEARNED = tuple(one for one in METRICS.values() if one.group == "quality" or one.training_loss or one.reward)


@dataclass(frozen=True, kw_only=True)
class GridRow:
    """One cell. `metrics`: by name, as text; `word`, `reason`: its verdict, or that there is none."""

    name: str
    metrics: Mapping[str, str]
    word: str
    reason: str


def metrics_of(decision: Decision | None, latest: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """A cell's metrics as text: those that decide, with their change; of one without a verdict, the means of its runs'
    `latest` values (by metric) of what tells how well they learned."""
    if decision is not None:
        rows = [row for row in wording.judged(decision) if not row.advisory and row.change != figures.NOTHING]
        return {row.metric: f"{row.candidate} ({row.change})" for row in rows}
    known = [one for one in LEARNED if latest and all(one.name in values for values in latest)]
    means = {one: sum(values[one.name] for values in latest) / len(latest) for one in known}
    return {one.name: figures.quantity(mean, one.unit) for one, mean in means.items()}


def columns(rows: Sequence[GridRow]) -> list[str]:
    """The metrics to show: what most cells have, at most COLUMNS, what tells how well they learned first."""
    having: dict[str, int] = {}
    for name in (name for row in rows for name in row.metrics):
        having[name] = having.get(name, 0) + 1
    learned = {one.name for one in LEARNED}
    return sorted(having, key=lambda name: (-having[name], name not in learned))[:COLUMNS]


def grid(rows: Sequence[GridRow]) -> str:
    """The grid as aligned text."""
    names = columns(rows)
    lines = [["cell", "verdict", *names, "why"]]
    lines += [
        [row.name, row.word, *(row.metrics.get(name, figures.NOTHING) for name in names), " ".join(row.reason.split())]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
