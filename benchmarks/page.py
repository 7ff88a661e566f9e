"""How fast the live pages answer over a store that is in use.

    python benchmarks/page.py [--requests 31]

Makes a SQLite store with 50 running and 5,000 finished runs in 1,250 sessions and one long run (100,000 steps of 12
series), serves it with `canary ui`, and gives the median and the slowest of that many requests for each page and each
refresh, with the statements that a refresh sends to the table of points. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser import canary_ui  # noqa: E402

RUNNING, FINISHED, IN_SESSION, STEPS = 50, 5_000, 4, 100_000
SERIES = ("stability/loss", "stability/grad_norm", "stability/kl", "stability/entropy", "stability/reward_mean",
          "stability/reward_std", "stability/clip_fraction", "stability/learning_rate", "perf/step_time", "perf/tokens",
          "perf/tokens_per_second", "perf/peak_memory")  # fmt: skip
TAGS = {"canary.algo": "ppo", "canary.model": "tiny", "canary.tier": "smoke", "canary.max_steps": "100000",
        "canary.watch.level": "healthy", "canary.watch.warnings": "0", "canary.watch.found": "[]",
        "canary.watch.policy": "default", "canary.completed": "true", "canary.failure": ""}  # fmt: skip


def fill(file: Path) -> str:
    """Rows straight into MLflow's tables; the id of the long run."""
    now = int(time.time() * 1000)
    with sqlite3.connect(file) as database:
        for number in range(FINISHED // IN_SESSION):
            session = add_run(database, now - number * 60_000, "FINISHED", {"canary.role": "session"}, 0)
            for seed in range(IN_SESSION):
                tags = {"canary.role": "run", "mlflow.parentRunId": session, "canary.seed": str(seed), **TAGS}
                add_run(database, now - number * 60_000, "FINISHED", tags, 3)
        ids = []
        for number in range(RUNNING):
            session = add_run(database, now, "RUNNING", {"canary.role": "session"}, 0)
            tags = {"canary.role": "run", "mlflow.parentRunId": session, "canary.seed": str(number), **TAGS}
            ids.append(add_run(database, now, "RUNNING", tags, 20 if number else STEPS))
    return ids[0]


def add_run(database: sqlite3.Connection, started: int, status: str, tags: dict[str, str], steps: int) -> str:
    """One run with `steps` points of each series."""
    run = uuid.uuid4().hex
    ended = started + 50_000 if status == "FINISHED" else None
    database.execute(
        "INSERT INTO runs (run_uuid, name, status, start_time, end_time, lifecycle_stage, experiment_id, artifact_uri) "
        "VALUES (?, ?, ?, ?, ?, 'active', 0, '')",
        (run, f"run {run[:6]}", status, started, ended),
    )
    database.executemany("INSERT INTO tags VALUES (?, ?, ?)", [(key, value, run) for key, value in tags.items()])
    if steps:
        values = np.random.default_rng(0).normal(1, 0.1, steps).tolist()
        for key in SERIES:
            database.executemany(
                "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, 0)",
                [(key, value, started + step, run, step) for step, value in enumerate(values, 1)],
            )
            database.execute(
                "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, 0, ?)",
                (key, values[-1], started + steps, steps, run),
            )
    return run


def pages(requests: int) -> dict[str, Any]:
    """Milliseconds by page."""
    from canary_mlflow.tracking.store import prepare_store

    with tempfile.TemporaryDirectory(prefix="canary-page-") as made:
        folder = Path(made)
        uri = f"sqlite:///{folder}/mlflow.db"
        prepare_store(uri)
        long = fill(folder / "mlflow.db")
        addresses = {
            "overview, and each of its refreshes": "/canary",
            "a run": f"/canary/run?id={long}",
            "a refresh of its curves": f"/canary/run.json?id={long}&after={STEPS}",
            "all its curves, 1.2 million points": f"/canary/run.json?id={long}",
        }
        found: dict[str, Any] = {}
        with canary_ui(uri, folder) as address:
            for name, path in addresses.items():
                asked = requests if "million" not in name else min(requests, 5)
                size = len(get(address + path))  # the first is warm-up
                took = [timed(address + path) for _ in range(asked)]
                found[name] = {"median_ms": statistics.median(took), "slowest_ms": max(took), "bytes": size}
                print(f"{name:<38} {statistics.median(took):8.1f} ms {max(took):8.1f} ms {size / 1024:8.1f} KiB")
        found["statements"] = statements(uri, long)
        print(f"statements to the points per refresh of a run: {found['statements']}, over one connection")
    return found


def statements(uri: str, run: str) -> int:
    """SELECTs from the table of points in one refresh of a run's curves."""
    import sqlalchemy as sa

    from canary_mlflow.pages.curves import curves
    from canary_mlflow.pages.database import engine, reading
    from canary_mlflow.pages.run import find_run

    sent: list[str] = []
    sa.event.listen(engine(uri), "before_cursor_execute", lambda *call: sent.append(call[2]))
    with reading(uri) as connection:
        curves(connection, find_run(connection, run), STEPS)
    return sum("FROM metrics" in one for one in sent)


def get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:
        body: bytes = answer.read()
    return body


def timed(address: str) -> float:
    """Milliseconds for one answer."""
    started = time.perf_counter()
    get(address)
    return (time.perf_counter() - started) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=31)
    chosen = parser.parse_args()
    print(json.dumps(pages(chosen.requests)))


if __name__ == "__main__":
    main()
