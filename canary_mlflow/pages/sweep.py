"""The grid of a sweep's cells, with the verdicts that it left, or what its runs have come to so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from canary_mlflow.pages.facts import children_of, read_facts
from canary_mlflow.pages.requests import readers
from canary_mlflow.pages.verdict import read_artifact
from canary_mlflow.reports.decision import decision_from_dict
from canary_mlflow.reports.figures import counted
from canary_mlflow.reports.sweep import GridRow, columns, metrics_of
from canary_mlflow.tracking.describing.schema import name_of_key
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.stores.read_only import reading
from canary_mlflow.tracking.stores.session import CELL_NAME_TAG


def grid_of(tracking: str, sweep: RunFacts) -> tuple[Sequence[GridRow], Sequence[str]]:
    """A row for each cell, in the order of its first run, and the metrics to show."""
    with reading(tracking) as connection:
        ids = children_of(connection, [sweep.run_id])[sweep.run_id]
        runs = [one for one in read_facts(connection, ids).values() if one.tags.get("canary.role") == "run"]
    cells: dict[str, list[RunFacts]] = {}
    for run in runs:
        cells.setdefault(run.tags.get(CELL_NAME_TAG) or run.tags.get("canary.model_name", ""), []).append(run)
    try:
        verdicts = read_artifact(sweep, "verdicts.json")
    except (OSError, ValueError):
        verdicts = {}
    rows = [row_of(name, own, verdicts.get(name)) for name, own in cells.items()]
    return rows, columns(rows)


def row_of(name: str, runs: Sequence[RunFacts], verdict: Any) -> GridRow:
    """The row of one cell."""
    try:
        decision = None if verdict is None else decision_from_dict(verdict)
    except (ValueError, TypeError, KeyError, AttributeError):
        decision = None
    if decision is not None and not readers().model(decision.model):
        decision = None
    latest = [{name_of_key(key): one.value for key, one in run.latest.items()} for run in runs]
    going, failed = sum(run.running for run in runs), sum(bool(run.failure) for run in runs)
    said = counted(len(runs), "run") + f", {going} running" * bool(going) + f", {failed} failed" * bool(failed)
    word, reason = ("RUNNING" if going else "not judged", said)
    if decision is not None:
        word, reason = decision.word, decision.verdict.reason
    return GridRow(name=name, metrics=metrics_of(decision, latest), word=word, reason=reason)
