"""The series that a verdict rests on, and their first in letters: a line for each side, on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
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
    runs = {side: read_runs(client, ids, names) for side, ids in sides.items() if ids}
    for name in names:
        found = {side: [run.series[name] for run in some if name in run.series] for side, some in runs.items()}
        long = {side: some for side, some in found.items() if some and min(len(one.values) for one in some) >= FEWEST}
        if "candidate" in long:
            return drawn(name, long)
    return []


def drawn(name: str, sides: dict[str, list[Series]]) -> list[str]:
    """A line for each side: its name, its curve, its first and last value."""
    means = {side: np.mean([stretches(one) for one in some], axis=0) for side, some in sides.items()}
    finite = [one for line in means.values() for one in line[np.isfinite(line)].tolist()] or [0.0]
    unit = METRICS[name].unit if name in METRICS else ""
    ends = {side: [value(float(np.mean([one.values[at] for one in some])), unit) for at in (0, -1)]
            for side, some in sides.items()}  # fmt: skip
    curves = {side: "".join(block(one, min(finite), max(finite)) for one in line) for side, line in means.items()}
    return [f"{label(name)}  {side:9}  {curves[side]}  {' → '.join(ends[side])}" for side in sides]


def stretches(series: Series) -> Sequence[float]:
    """The means of WIDTH stretches, as they are drawn."""
    values = scaled(series)
    at = np.linspace(0, len(values), WIDTH + 1).astype(int)
    return [float(values[start : max(end, start + 1)].mean()) for start, end in pairwise(at.tolist())]
