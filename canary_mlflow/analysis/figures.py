"""Runs in numbers: each series, how signals correlate, both sides' performance, and the memory of each algorithm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from canary_mlflow import tags
from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.gates.model.records import Run, Series
from canary_mlflow.reports.charts import SERIES
from canary_mlflow.reports.study import Compared, Correlation, Figures, Memory, Peak
from canary_mlflow.tracking.describing.schema import REQUIRED, mlflow_key
from canary_mlflow.tracking.reading.histories import read_points

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

ALGORITHMS = [name for name in REQUIRED if name != "trainer"]  # a user's own script may train anything
# If two runs differ in one of these, their memory differs for another reason than their algorithm.
LIKE = (tags.MODEL, tags.TIER, tags.ADAPTER, tags.QUANTIZATION, f"{tags.HARDWARE}device")
NEWEST = 100  # runs of an algorithm that are searched
USED = 20  # of those that are used
KEY = mlflow_key("peak_memory")
FEWEST = 8  # steps that two signals must share in a run before their correlation means anything


def figures_of(series: Series) -> Figures:
    """A series in numbers."""
    values = series.finite_only().values
    broken = len(series.values) - len(values)
    if not len(values):
        return Figures(values=0, not_finite=broken)
    with np.errstate(over="ignore", invalid="ignore"):  # values near the largest float have no mean
        mean, spread = float(values.mean()), float(values.std())
    return Figures(
        values=len(values),
        not_finite=broken,
        first=float(values[0]),
        last=float(values[-1]),
        lowest=float(values.min()),
        highest=float(values.max()),
        mean=mean if np.isfinite(mean) else None,
        median=float(np.median(values)),
        spread=spread if np.isfinite(spread) else None,
    )


def table_of(run: Run) -> pd.DataFrame:
    """The signals of a run that vary: a row per step, a column per signal in the order of the charts."""
    import pandas as pd

    found = {name: run.series[name].finite_only() for name in SERIES if name in run.series}
    varying = {name: one for name, one in found.items() if len(one.values) >= FEWEST and np.ptp(one.values) > 0}
    return pd.DataFrame({name: pd.Series(one.values, index=one.steps) for name, one in varying.items()})


def correlation_of(runs: Sequence[Run]) -> Correlation:
    """How the signals of the runs correlate."""
    import pandas as pd

    tables = [
        table.corr(method="spearman", min_periods=FEWEST) for run in runs if len((table := table_of(run)).columns)
    ]
    names = [name for name in SERIES if any(name in one.columns for one in tables)]
    if len(names) < 2:
        return Correlation(
            said=f"No correlation: it needs two signals that vary over at least {FEWEST} steps, and the runs have "
            f"{len(names) or 'none'}."
        )
    every = [one.reindex(index=names, columns=names) for one in tables]
    mean = pd.concat(every, keys=range(len(every))).groupby(level=1, sort=False).mean().reindex(names)
    rows = [[None if np.isnan(cell) else float(cell) for cell in row] for row in mean.to_numpy()]
    return Correlation(names=names, rows=rows, runs=len(tables))


def performance_of(baseline: Sequence[Run], candidate: Sequence[Run]) -> list[Compared]:
    """Time, work and memory of both sides; metrics that no candidate has are left out."""
    rows = []
    for name, metric in METRICS.items():
        if metric.group != "perf":
            continue
        left, right = middles(baseline, name), middles(candidate, name)
        if not right:
            continue
        before, now = (median(left) if left else None), median(right)
        rows.append(
            Compared(
                metric=name,
                unit=metric.unit,
                worse=metric.worse,
                baseline=before,
                candidate=now,
                change=now / before - 1 if before is not None and before > 0 else None,
                baseline_runs=len(left),
                candidate_runs=len(right),
            )
        )
    return rows


def middles(runs: Iterable[Run], name: str) -> list[float]:
    """The median over the steps, of each run that has the series."""
    return [float(np.median(values)) for run in runs if len(values := run.finite(name))]


def summaries(run: Run) -> Mapping[str, Figures]:
    """Every series in numbers: canonical ones in the order of the schema, then what a trainer logged besides."""
    order = {name: place for place, name in enumerate(METRICS)}
    return {
        name: figures_of(run.series[name]) for name in sorted(run.series, key=lambda one: (order.get(one, 10**6), one))
    }


def memory_of(client: MlflowClient, own: Mapping[str, str]) -> Memory:
    """Peak memory by algorithm, of finished runs that are like the one with these tags, but for those that are no
    standard for others."""
    model, tier = own.get(tags.MODEL, ""), own.get(tags.TIER, "")
    if not model:
        return Memory(said=["Not compared: only runs that `canary run` made say which model they train."])
    like = ", ".join(part for part in (model, tier and f"tier {tier}", own.get(f"{tags.HARDWARE}device", "")) if part)
    experiments = [one.experiment_id for one in client.search_experiments(max_results=1000)]
    runs = {algo: alike(client, experiments, algo, own) for algo in ALGORITHMS}
    points = read_points(client, {run.info.run_id: [KEY] for found in runs.values() for run in found})
    highest: Mapping[str, list[float]] = defaultdict(list)
    for algo, found in runs.items():
        for run in found:
            values = points[run.info.run_id][KEY][:, 2]
            if len(values := values[np.isfinite(values)]):
                highest[algo].append(float(values.max()))
    absent = ", ".join(algo.upper() for algo in ALGORITHMS if not highest[algo])
    return Memory(
        like=like,
        peaks=[
            Peak(algo=algo, runs=len(each), median=median(each), lowest=min(each), highest=max(each))
            for algo in ALGORITHMS
            if (each := highest[algo])
        ],
        said=[f"No finished run of {like} in this store: {absent}."] if absent else [],
    )


def alike(client: MlflowClient, experiments: list[str], algo: str, own: Mapping[str, str]) -> list[MlflowRun]:
    """The newest finished runs of an algorithm that measured memory and differ in nothing else that matters to it."""
    ended = f"{tags.where(tags.ROLE, 'run')} AND {tags.where(tags.COMPLETED, 'true')}"
    found: list[MlflowRun] = []
    page: str | None = None
    for _ in range(NEWEST // USED):  # mostly the first page is enough, and a run takes a millisecond to fetch
        runs = client.search_runs(
            experiments,
            f"{tags.where(tags.ALGO, algo)} AND {ended}",
            order_by=["attributes.start_time DESC"],
            max_results=USED,
            page_token=page,
        )
        found += [run for run in runs if is_like(run, own)]
        page = runs.token
        if len(found) >= USED or not page:
            break
    return found[:USED]


def is_like(run: MlflowRun, own: Mapping[str, str]) -> bool:
    """Whether a run is a standard for the one with these tags."""
    if KEY not in run.data.metrics or tags.NOT_PROMOTABLE in run.data.tags:
        return False
    return all(run.data.tags.get(key) == own.get(key) for key in LIKE)
