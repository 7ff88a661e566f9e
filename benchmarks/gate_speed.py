"""How long the gate takes to decide, and to read its evidence compared with MLflow's own call."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # at the end: it has a folder `gates` too

from cluster import binaries, cluster  # the path is set above
from gate_judges import policy_for

from canary_mlflow.gates import Role, Run, Series, Version, judge


def speed_lines(decision: float, reading: dict[str, dict[str, float]]) -> list[str]:
    """The measurements in sentences."""
    lines = ["", f"A decision over 10 runs, 12 metrics and 2000 steps: {decision} ms of CPU. Reading 240,000 points:"]
    for store, took in reading.items():
        ratio = took["get_metric_history"] / took["bulk"]
        own = f"{took['get_metric_history']:.2f} s by `get_metric_history`"
        lines.append(f"* {store}: {took['bulk']:.3f} s, {own}, {ratio:.0f} times as long.")
    return lines


def decision_time() -> float:
    """Median CPU milliseconds of a decision over 10 runs, 12 metrics and 2000 steps."""
    rng = np.random.default_rng(3)
    policy = policy_for("nightly")
    names = list(dict.fromkeys(rule.metric for rule in policy.rules if rule.role is not Role.IGNORE))[:12]
    steps = np.arange(1, 2001)

    def run(number: int) -> Run:
        held = {n: Series(name=n, steps=steps, values=np.exp(rng.normal(0, 0.05, 2000))) for n in names}
        return Run(run_id=str(number), seed=None, series=held, last_step=2000)

    sides = [Version(model="", version=None, runs=tuple(run(i + 5 * side) for i in range(5))) for side in (0, 1)]
    took = []
    for _ in range(20):
        started = time.thread_time()
        judge(policy, *sides)
        took.append(1000 * (time.thread_time() - started))
    return statistics.median(took)


def reading_times() -> dict[str, dict[str, float]]:
    """Reading times, in seconds, from SQLite, and from PostgreSQL if it is installed."""
    with tempfile.TemporaryDirectory() as folder:
        found = {"SQLite": reading_time(f"sqlite:///{folder}/mlflow.db", folder)}
        if binaries() is not None:
            with cluster() as postgres:
                postgres.run("CREATE DATABASE mlflow")
                found["PostgreSQL"] = reading_time(postgres.uri("mlflow"), folder)
    return found


def reading_time(uri: str, folder: str) -> dict[str, float]:
    """Seconds to read 240,000 points in bulk and by MLflow's call for each series: alternating, medians of 5."""
    from mlflow.entities import Metric

    from canary_mlflow.tracking.describing.schema import mlflow_key
    from canary_mlflow.tracking.reading.histories import read_runs
    from canary_mlflow.tracking.stores.store import prepare_store

    names = [rule.metric for rule in policy_for("smoke").rules]
    keys = [mlflow_key(name) for name in dict.fromkeys(names)][:12]
    bulk, own = [], []
    client = prepare_store(uri)
    experiment = client.create_experiment("speed", artifact_location=folder)
    runs = [client.create_run(experiment).info.run_id for _ in range(10)]
    for run_id in runs:
        for key in keys:
            points = [Metric(key, 0.1 * step, 1_700_000_000_000 + step, step) for step in range(2000)]
            for start in (0, 1000):
                client.log_batch(run_id, metrics=points[start : start + 1000])
    for _ in range(5):
        started = time.perf_counter()
        read_runs(client, runs)
        bulk.append(time.perf_counter() - started)
        started = time.perf_counter()
        for run_id in runs:
            for key in keys:
                client.get_metric_history(run_id, key)
        own.append(time.perf_counter() - started)
    return {"bulk": statistics.median(bulk), "get_metric_history": statistics.median(own)}
