"""The grid of a sweep's cells, with the verdicts of its runs, or how far they are."""

from __future__ import annotations

from collections.abc import Sequence

from canary_mlflow.pages.facts import children_of, read_facts
from canary_mlflow.reports.figures import counted
from canary_mlflow.reports.sweep import GridRow, columns
from canary_mlflow.tags import CELL_NAME, MODEL_NAME, VERDICT, VERDICT_REASON
from canary_mlflow.tracking.describing.schema import name_of_key
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.stores.read_only import reading


def grid_of(tracking: str, sweep: RunFacts) -> tuple[Sequence[GridRow], Sequence[str]]:
    """A row for each cell, in the order of its first run, and the metrics to show."""
    with reading(tracking) as connection:
        runs = read_facts(connection, children_of(connection, [sweep.run_id])[sweep.run_id])
    cells: dict[str, list[RunFacts]] = {}
    for run in runs.values():
        cells.setdefault(run.tags.get(CELL_NAME) or run.tags.get(MODEL_NAME, ""), []).append(run)
    rows = [row_of(name, own) for name, own in cells.items()]
    return rows, columns(rows)


def row_of(name: str, runs: Sequence[RunFacts]) -> GridRow:
    """The row of one cell; every run of it has its verdict."""
    latest = [{name_of_key(key): one.value for key, one in run.latest.items()} for run in runs]
    going, tags = sum(run.running for run in runs), runs[0].tags
    said = counted(len(runs), "run") + f", {going} running" * bool(going)
    word = tags.get(VERDICT) or ("RUNNING" if going else "not judged")
    return GridRow(name=name, latest=latest, word=word, reason=tags.get(VERDICT_REASON) or said)
