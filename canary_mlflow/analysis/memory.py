"""The peak memory that each algorithm needs for the same model, as runs in this store measured it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from canary_mlflow import tags
from canary_mlflow.reports.study import Memory, Peak
from canary_mlflow.tracking.describing.schema import REQUIRED, mlflow_key
from canary_mlflow.tracking.reading.histories import read_points

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

ALGORITHMS = [name for name in REQUIRED if name != "trainer"]  # a user's own script may train anything
# If two runs differ in one of these, their memory differs for another reason than their algorithm.
LIKE = (tags.MODEL, tags.TIER, tags.ADAPTER, tags.QUANTIZATION, f"{tags.HARDWARE}device")
NEWEST = 100  # runs of an algorithm that are searched
USED = 20  # of those that are used
KEY = mlflow_key("peak_memory")


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
