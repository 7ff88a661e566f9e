"""A sweep as a grid: a row for each cell, named by what differs, with its metrics and its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.reports.formatting import quantity

LEARNED = ("eval_loss", "eval_accuracy", "eval_reward", "reward_mean", "score_mean", "kl", "loss", "policy_loss")
COLUMNS = 4  # of these that there is room for


@dataclass(frozen=True, kw_only=True)
class GridRow:
    """One cell. `latest`: the last values of each of its runs, by metric; `word`, `reason`: its verdict, or none."""

    name: str
    latest: Sequence[Mapping[str, float]]
    word: str
    reason: str

    def mean(self, name: str) -> float | None:
        """The mean of a metric over the runs that have it."""
        found = [values[name] for values in self.latest if name in values]
        return fmean(found) if found else None

    def shown(self, name: str) -> str:
        """The mean as text."""
        return quantity(self.mean(name), METRICS[name].unit)


def ends(rows: Sequence[GridRow], name: str) -> dict[float, str]:
    """The best and the worst mean of a metric that has a worse side, each with its word."""
    known, worse = {one for row in rows if (one := row.mean(name)) is not None}, METRICS[name].worse
    words = ("best", "worst") if worse == "higher" else ("worst", "best")
    return dict(zip((min(known), max(known)), words, strict=True)) if len(known) > 1 and worse != "both" else {}


def columns(rows: Sequence[GridRow]) -> list[str]:
    """The metrics to show."""
    known = {name for row in rows for values in row.latest for name in values}
    return [name for name in LEARNED if name in known][:COLUMNS]


def grid(rows: Sequence[GridRow]) -> str:
    """The grid as aligned text."""
    names = columns(rows)
    lines = [["cell", "verdict", *names, "why"]]
    lines += [[row.name, row.word, *map(row.shown, names), " ".join(row.reason.split())] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
