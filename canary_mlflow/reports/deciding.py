"""The series that a verdict rests on, and their first in letters: a line for each side, on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np

from canary_mlflow.gates.model.metrics import METRICS, label
from canary_mlflow.gates.model.records import Series
from canary_mlflow.gates.model.rules import Role
from canary_mlflow.gates.model.verdict import Outcome
from canary_mlflow.gates.watch.warning import Level
from canary_mlflow.reports.following import WIDTH, block, scaled, value

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.reports.decision import Decision

FEWEST = 5  # values of a curve


def decided_by(decision: Decision) -> list[str]:
    """The series of what blocks, or leaves a verdict open, the first reason first; of a hard check those that the watch
    warned of, and the loss. Empty for a PASS."""
    verdict, found = decision.verdict, dict[str, None]()
    warned = [one.warning.stream for one in decision.warnings if one.warning.level >= Level.CRITICAL]
    for check in verdict.checks if verdict.outcome is not Outcome.PASS else ():
        if check.outcome.value == verdict.outcome.value:
            rule = (verdict.policy.get("rules") or {}).get(check.metric, {})
            of_rule = [str(rule.get("metric", check.metric))]
            found |= dict.fromkeys([*warned, "loss"] if check.role is Role.HARD else of_rule)
    return list(found)


def in_letters(client: MlflowClient, decision: Decision) -> list[str]:
    """The curve that decided, of each side the mean of its runs; where that has few values, the loss."""
    from canary_mlflow.tracking.reading.histories import read_runs

    names = [*decided_by(decision), "loss"]
    sides = {"baseline": decision.verdict.baseline_runs, "candidate": decision.verdict.candidate_runs}
    runs = {side: read_runs(client, ids, names) for side, ids in sides.items()}
    for name in names:
        found = {side: [one.series[name] for one in some if name in one.series] for side, some in runs.items()}
        if found["candidate"] and all(len(one.values) >= FEWEST for some in found.values() for one in some):
            return drawn(name, {side: some for side, some in found.items() if some})
    return []


def drawn(name: str, sides: dict[str, list[Series]]) -> list[str]:
    """A line for each side: its name, its curve, its first and last value."""
    logs = all(scaled(one) is not one.values for one in chain(*sides.values()))
    means = {side: np.mean([stretches(one, logs) for one in some], axis=0) for side, some in sides.items()}
    finite = np.concatenate([line[np.isfinite(line)] for line in means.values()])
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    unit = METRICS[name].unit if name in METRICS else ""
    lines = []
    for side, some in sides.items():
        ends = " → ".join(value(float(np.mean([one.values[at] for one in some])), unit) for at in (0, -1))
        lines.append(f"{label(name)}  {side:9}  {''.join(block(one, low, high) for one in means[side])}  {ends}")
    return lines


def stretches(series: Series, logs: bool) -> Sequence[float]:
    """The means of WIDTH stretches, as they are drawn: of logarithms if all runs have some."""
    values = scaled(series) if logs else series.values
    at = np.linspace(0, len(values), WIDTH + 1).astype(int).tolist()
    return [float(values[start : max(end, start + 1)].mean()) for start, end in pairwise(at)]
