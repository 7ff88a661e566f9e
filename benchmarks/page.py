"""How fast the live pages answer over a store that is in use, and what an open page costs a training.

    python benchmarks/page.py [--requests 31]
    python benchmarks/page.py --training MINUTES

The first makes a SQLite store with 50 running and 5,000 finished runs in 1,250 sessions and one long run (100,000 steps
of 12 series), serves it with `canary ui`, and gives the median and the slowest of that many requests for each page
and each refresh, with the statements that a refresh sends to the table of points. The second lets one smoke canary
train for so long and opens its page (what a browser asks for, as often) for 10 seconds in every 20: spells of one run
a few seconds apart differ far less than two runs do. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

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
EVERY = 2.0  # seconds between the refreshes of a run's curves
RARELY = 5  # such refreshes for one of the rest of its page
SPELL = EVERY * RARELY  # seconds for which somebody looks, or nobody
WARM = 100  # steps before the first spell


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


def training(minutes: float) -> dict[str, Any]:
    """Mean step of one long training while somebody looks, over that while nobody does, by pairs of spells."""
    from canary_mlflow.tracking.store import prepare_store

    with tempfile.TemporaryDirectory(prefix="canary-page-") as made:
        folder = Path(made)
        uri = f"sqlite:///{folder}/mlflow.db"
        client = prepare_store(uri)
        with canary_ui(uri, folder) as address:
            server = psutil.Process().children(recursive=True)
            with trained(folder, uri):
                run = begun(client)
                turns = list(in_turn(60 * minutes / SPELL))
                viewer = Viewer(f"{address}/canary/run", run, server)
                spells, shares = zip(*(viewer.spell(looking) for looking in turns), strict=True)
        found = {}
        for name in ("step_time", "step_cpu_time"):
            points = client.get_metric_history(run, f"perf/{name}")
            found[name] = compared([mean_within(points, *one) for one in spells])
            one = found[name]
            print(f"{name:<14} {one['without_ms']:.2f} ms, with a page open {one['more_percent']:+.2f} % "
                  f"[{one['low_percent']:+.2f}, {one['high_percent']:+.2f}], {one['pairs']} pairs")  # fmt: skip
        for looking, word in ((True, "open"), (False, "shut")):
            shares_of = [share for share, one in zip(shares, turns, strict=True) if one is looking]
            found[f"server_cpu_{word}_percent"] = 100 * statistics.fmean(shares_of)
            print(f"the server, page {word}: {100 * statistics.fmean(shares_of):.2f} % of one core")
    return found


def in_turn(count: float) -> Iterator[bool]:
    """Whether somebody looks: no, yes, yes, no, and again, so that neither side has the earlier half of the run."""
    for number in range(4 * max(1, round(count / 4))):
        yield number % 4 in (1, 2)


@dataclass
class Viewer:
    """Somebody before the page of a run, and the processes of the server that serves it."""

    page: str
    run: str
    server: list[psutil.Process]
    after: int = 0  # the last step that the page has

    def spell(self, looking: bool) -> tuple[tuple[float, float], float]:
        """Let the training go on for a while; the seconds since 1970 between which the steps count, and the share of a
        core that the server took."""
        began, taken = time.time(), cpu_seconds(self.server)
        for turn in range(RARELY):
            asked = time.time()
            if looking:  # what the page's script does
                self.after = json.loads(get(f"{self.page}.json?id={self.run}&after={self.after}"))["next"]
                if turn == 0:
                    get(f"{self.page}?id={self.run}")
            time.sleep(max(0.0, EVERY - (time.time() - asked)))
        ended = time.time()
        return (began, ended), (cpu_seconds(self.server) - taken) / (ended - began)


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """User and system, so far."""
    return sum(one.cpu_times().user + one.cpu_times().system for one in processes)


def mean_within(points: list[Any], began: float, ended: float) -> float:
    """The mean of what was recorded in a spell: a median would not see a step in a hundred that takes twice as long."""
    return statistics.fmean(one.value for one in points if began <= one.timestamp / 1000 < ended)


def compared(means: list[float]) -> dict[str, Any]:
    """The effect of looking: the median over the groups of four spells (no, yes, yes, no), with its 95 % interval by
    bootstrap. A median here, because now and then a neighbour of this machine stops everything for a second."""
    groups = np.log(np.array(means)).reshape(-1, 4)
    effects = (groups[:, 1] + groups[:, 2] - groups[:, 0] - groups[:, 3]) / 2
    rng = np.random.default_rng(0)
    drawn = np.median(rng.choice(effects, (10_000, len(effects))), axis=1)
    percent = [100 * math.expm1(value) for value in (np.median(effects), *np.quantile(drawn, [0.025, 0.975]))]
    return {
        "without_ms": 1000 * statistics.median(means[0::4] + means[3::4]),
        **dict(zip(("more_percent", "low_percent", "high_percent"), percent, strict=True)),
        "pairs": 2 * len(effects),
        "spells_ms": [round(1000 * mean, 3) for mean in means],
    }


@contextmanager
def trained(folder: Path, uri: str) -> Iterator[None]:
    """A smoke canary that trains until it is told to stop."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": uri, "CANARY_KEYS": str(folder / "keys")}
    words = ["tier=smoke", "algo=sft", "repeats=1", "train.max_steps=1000000"]
    command = [sys.executable, "-m", "training", *words]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def begun(client: Any) -> str:
    """The run, once it has left its first steps behind."""
    while True:
        time.sleep(1)
        found = client.search_runs(["1", "0"], "tags.`canary.role` = 'run'", max_results=1)
        if found and len(client.get_metric_history(found[0].info.run_id, "perf/step_time")) > WARM:
            return str(found[0].info.run_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=31)
    parser.add_argument("--training", type=float, default=0, metavar="MINUTES")
    chosen = parser.parse_args()
    print(json.dumps(training(chosen.training) if chosen.training else pages(chosen.requests)))


if __name__ == "__main__":
    main()
