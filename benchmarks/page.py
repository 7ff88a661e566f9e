"""How fast the live pages answer over a store that is in use.

    python benchmarks/page.py [--requests 31] [--running 50] [--sessions 1250] [--steps 100000] [--series 12]
                              [--verdicts 30] [--postgres]

Makes a SQLite store, or a PostgreSQL cluster of its own, with that many running and finished sessions, 40 models of
that many verdicts and one long run, serves it with `canary ui`, and gives the median and the slowest of that many
requests for each page and each refresh, with the bytes that a browser receives; the very first look at the long run:
its first curves, of a few points each, and all its points; and the statements that a refresh sends to the table of
points. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from mlflow import MlflowClient

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from browser import canary_ui  # noqa: E402
from cluster import cluster  # noqa: E402

IN_SESSION, LAST, MODELS = 4, 1, 40
WORDS, TIERS = ("PASS", "PASS", "PASS", "BLOCK", "INCONCLUSIVE"), ("smoke", "nightly", "perf")
NONE: dict[str, str] = {}
PARAMS = {f"cfg/some.key_{number}": str(number) for number in range(10)}
SERIES = ("stability/loss", "stability/grad_norm", "stability/kl", "stability/entropy", "stability/reward_mean",
          "stability/reward_std", "stability/clip_fraction", "stability/learning_rate", "perf/step_time", "perf/tokens",
          "perf/tokens_per_second", "perf/peak_memory")  # fmt: skip
TAGS = {"canary.algo": "ppo", "canary.model": "tiny", "canary.tier": "smoke", "canary.max_steps": "100000",
        "canary.watch.level": "healthy", "canary.watch.warnings": "0", "canary.watch.found": "[]",
        "canary.watch.policy": "default", "canary.completed": "true", "canary.failure": ""}  # fmt: skip


RUN = ("run_uuid", "name", "status", "start_time", "end_time", "lifecycle_stage", "experiment_id", "artifact_uri")
PAIR, POINT = ("key", "value", "run_uuid"), ("key", "value", "timestamp", "run_uuid", "step", "is_nan")
TABLES = {"runs": RUN, "tags": PAIR, "params": PAIR, "metrics": POINT, "latest_metrics": POINT}


class Filler:
    """Collects rows for MLflow's tables and writes them in bulk. `series`: how many each run has."""

    def __init__(self, series: int) -> None:
        self.series = SERIES[:series]
        self.rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in TABLES}

    def run(self, started: int, status: str, tags: dict[str, str], steps: int, params: dict[str, str] = NONE) -> str:
        """Add a run with `steps` points of each series; returns its id."""
        run = uuid.uuid4().hex
        ended = started + 50_000 if status == "FINISHED" else None
        self.rows["runs"].append((run, f"run {run[:6]}", status, started, ended, "active", 0, ""))
        self.rows["tags"] += [(key, value, run) for key, value in tags.items()]
        self.rows["params"] += [(key, value, run) for key, value in params.items()]
        values = np.random.default_rng(0).normal(1, 0.1, steps).tolist()
        for key in self.series if steps else ():
            self.rows["metrics"] += [(key, value, started + at, run, at, False) for at, value in enumerate(values, 1)]
            self.rows["latest_metrics"].append((key, values[-1], started + steps, run, steps, False))
        return run

    def write(self, database: sa.Connection) -> None:
        """Write all rows so far, in the driver's fastest way."""
        cursor = database.connection.cursor()
        for table, columns in TABLES.items():
            names = ", ".join(columns)
            if database.dialect.name == "postgresql":
                with cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:  # type: ignore[attr-defined]
                    for row in self.rows[table]:
                        copy.write_row(row)
            else:
                marks = ", ".join("?" * len(columns))
                cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", self.rows[table])
        database.connection.commit()
        self.rows = {table: [] for table in TABLES}


def fill(uri: str, running: int, sessions: int, steps: int, series: int) -> tuple[str, str]:
    """Write rows straight into MLflow's tables; returns the ids of the long run and of its session."""
    now = int(time.time() * 1000)
    rows = Filler(series)
    with sa.create_engine(uri, poolclass=sa.pool.NullPool).connect() as database:
        for number in range(sessions):
            word, tier = WORDS[number % len(WORDS)], TIERS[number % len(TIERS)]
            about = {"canary.model_name": f"model-{number % MODELS}", "canary.tier": tier}
            mine = {"canary.role": "session", "canary.verdict": word, "canary.changed": f"trl 1.{number % 9}", **about}
            session = rows.run(now - number * 60_000, "FINISHED", mine, 0)
            rate = {"cfg/train.learning_rate": "0.02" if number == sessions // 2 else "0.002"}
            for seed in range(IN_SESSION):
                level = {"canary.watch.level": "warned"} if number % 50 == 0 else {}
                tags = {"canary.role": "run", "mlflow.parentRunId": session, "canary.seed": str(seed), **TAGS, **level}
                begun = now - number * 60_000 + 1000 * (1 + seed)
                rows.run(begun, "FINISHED", {**tags, "canary.tier": tier}, LAST, {**rate, **PARAMS})
            if number % 1000 == 999:
                rows.write(database)
        long = ("", "")
        for number in range(running):
            session = rows.run(now, "RUNNING", {"canary.role": "session"}, 0)
            tags = {"canary.role": "run", "mlflow.parentRunId": session, "canary.seed": str(number), **TAGS}
            run = rows.run(now, "RUNNING", tags, 20 if number else steps)
            long = long if number else (run, session)
        rows.write(database)
    return long


@contextmanager
def database(folder: Path, postgres: bool) -> Iterator[str]:
    """The address of an empty store."""
    if not postgres:
        yield f"sqlite:///{folder}/mlflow.db"
        return
    with cluster() as made:
        made.run("CREATE DATABASE pages")
        yield made.uri("pages")


def judge(uri: str, verdicts: int) -> None:
    """A ledger with so many verdicts on each of the models, in turn."""
    from ledger import record  # sets CANARY_KEYS to a folder of its own

    from canary_mlflow.ledger import table
    from canary_mlflow.ledger.chain import signed
    from canary_mlflow.ledger.keys import key_folder, load_signer
    from canary_mlflow.registry.plugin import guarded_store

    guarded_store(uri, "")
    client, signer = MlflowClient(uri, uri), load_signer(key_folder())
    for number in range(MODELS):
        client.create_registered_model(f"model-{number}")
    with sa.create_engine(uri, poolclass=sa.pool.NullPool).begin() as connection:
        last = table.last(connection)
        for number in range(verdicts * MODELS):
            made = record(2 * number)  # the others are no verdicts
            facts = {**made.facts, "changed": f"trl 1.{number}"}
            made = replace(made, model=f"model-{number % MODELS}", version=number // MODELS + 1, facts=facts)
            last = signed(made, last, signer)
            table.append(connection, last)
        if connection.dialect.name == "postgresql":  # as its autovacuum does within a minute of so many rows
            connection.exec_driver_sql("ANALYZE")


def pages(
    requests: int, running: int, sessions: int, steps: int, series: int, verdicts: int, postgres: bool
) -> dict[str, Any]:
    """Milliseconds by page."""
    from canary_mlflow.tracking.stores.store import prepare_store

    with tempfile.TemporaryDirectory(prefix="canary-page-") as made, database(Path(made), postgres) as uri:
        folder = Path(made)
        os.environ["CANARY_CACHE"] = str(folder / "cache")
        prepare_store(uri)
        long, session = fill(uri, running, sessions, steps, series)
        judge(uri, verdicts)
        points = f"{steps * series / 1e6:g} million points"
        addresses = {
            "overview with the wall, and each of its refreshes": "/canary",
            "a model, all its verdicts": "/canary/model?name=model-0",
            "a run": f"/canary/run?id={long}",
            "its first curves": f"/canary/run.json?id={long}&rough=1",
            "a refresh of its curves": f"/canary/run.json?id={long}&after={steps}",
            f"all its curves, {points}": f"/canary/run.json?id={long}",
            "its session": f"/canary/session?id={session}",
            "the session's first curves": f"/canary/session.json?id={session}&rough=1",
            "a refresh of the session's curves": f"/canary/session.json?id={session}&after={steps}",
            f"all the session's, {points}": f"/canary/session.json?id={session}",
            "the index of sessions": "/canary/sessions",
            "the index, blocked nightlies": "/canary/sessions?verdict=BLOCK&tier=nightly",
            "the index, warned": "/canary/sessions?warned=1",
            "the index, by name, half way": f"/canary/sessions?sort=name&skip={sessions * (IN_SESSION + 1) // 2}",
            "the index, one learning rate": "/canary/sessions?q=learning_rate%3D2e-2",
            "the index, a metric": "/canary/sessions?q=loss%3C2",
            "the index, a metric and a setting": "/canary/sessions?q=loss%3C2+lr%3E1e-3",
            "the index, grouped by model": "/canary/sessions?sort=model",
            "the index, grouped by what changed": "/canary/sessions?sort=changed",
            "the index of runs, grouped by seed": "/canary/sessions?what=runs&sort=seed",
            "the index, part of a name": "/canary/sessions?q=run+ab",
            "the index of runs": "/canary/sessions?what=runs",
        }
        found: dict[str, Any] = {}
        with canary_ui(uri, folder) as address:
            get(f"{address}/canary/run?id={long}")  # loads what a server loads with its first page
            for name, more in (("first curves", "&rough=1"), (f"and then all {points}", "")):
                found[name] = timed(f"{address}/canary/session.json?id={session}{more}")
                print(f"{name:<50} {found[name]:8.1f} ms")
            for name, path in addresses.items():
                asked = requests if "million" not in name else min(requests, 5)
                size = len(get(address + path))  # the first is warm-up
                took = [timed(address + path) for _ in range(asked)]
                found[name] = {"median_ms": statistics.median(took), "slowest_ms": max(took), "bytes": size}
                print(f"{name:<50} {statistics.median(took):8.1f} ms {max(took):8.1f} ms {size / 1024:8.1f} KiB")
        found["statements"] = statements(uri, long, steps)
        print(f"statements to the points per refresh of a run: {found['statements']}, over one connection")
    return found


def statements(uri: str, run: str, after: int) -> int:
    """The number of SELECTs from the table of points in one refresh of a run's curves."""
    from flask import Flask

    from canary_mlflow.pages.blueprint import add_pages
    from canary_mlflow.registry.plugin import SERVER_BACKEND
    from canary_mlflow.tracking.stores.read_only import engine

    os.environ[SERVER_BACKEND] = uri
    app, sent = Flask("server"), list[str]()
    add_pages(app)
    sa.event.listen(engine(uri), "before_cursor_execute", lambda *call: sent.append(call[2]))
    assert app.test_client().get(f"/canary/run.json?id={run}&after={after}").status_code == 200
    return sum("FROM metrics" in one for one in sent)


def get(address: str) -> bytes:
    """What a browser receives, packed as it is sent."""
    asked = urllib.request.Request(address, headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(asked, timeout=600) as answer:
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
    parser.add_argument("--running", type=int, default=50, help="sessions that go on, of one run each")
    parser.add_argument("--sessions", type=int, default=1250, help="sessions that have finished, of four runs each")
    parser.add_argument("--steps", type=int, default=100_000, help="of the long run")
    parser.add_argument("--series", type=int, default=len(SERIES), help="that each run has")
    parser.add_argument("--verdicts", type=int, default=30, help="in the ledger, on each of the models")
    parser.add_argument("--postgres", action="store_true", help="instead of SQLite")
    print(json.dumps(pages(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
