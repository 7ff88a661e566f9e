"""What the gate, and asking for a session's runs, take in a store of many runs and versions."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import sqlalchemy as sa  # noqa: E402  # the path is set above
from guard_modes import ADMIN  # noqa: E402
from ledger import record  # noqa: E402  # sets CANARY_KEYS to a folder of its own
from load_places import place  # noqa: E402
from load_writers import apart  # noqa: E402
from page import Filler  # noqa: E402
from recorded import CHILD, STEPS, Recorded  # noqa: E402
from recorded import TAGS as WORK  # noqa: E402
from workplace import Workplace  # noqa: E402

from canary_mlflow import api  # noqa: E402
from canary_mlflow.ledger.chain import Row, signed  # noqa: E402
from canary_mlflow.ledger.keys import key_folder, load_signer  # noqa: E402
from canary_mlflow.ledger.table import LEDGER  # noqa: E402
from canary_mlflow.registry.acts.by_hand import bless  # noqa: E402
from canary_mlflow.registry.judging import gatekeeper  # noqa: E402
from canary_mlflow.registry.policies.asked import policy_for  # noqa: E402
from canary_mlflow.tags import SESSION_ID  # noqa: E402
from canary_mlflow.tracking.stores.session import child_runs  # noqa: E402
from canary_mlflow.tracking.stores.store import prepare_store  # noqa: E402

MODEL = "one-of-many"
IN_SESSION = 4
ROWS_EACH = 4  # of the ledger for each version: its session's end, its seal, two verdicts
OFTEN, SELDOM = 21, 5  # how often each thing is measured
AT_ONCE = 200  # sessions written at once


def sessions(database: sa.Connection, experiment: str, count: int) -> list[tuple[str, str]]:
    """Write sessions of four runs as the gate would read them; (session, its first run) of each."""
    made, rows, now = [], Filler(12), int(time.time() * 1000)
    for number in range(count):
        began = now - (count - number) * 60_000
        session = rows.run(began, "FINISHED", {**WORK, "canary.role": "session"}, 0)
        mine = {**WORK, **CHILD, "mlflow.parentRunId": session}
        runs = [
            rows.run(began + 1000 * seed, "FINISHED", {**mine, "canary.seed": str(seed)}, STEPS)
            for seed in range(IN_SESSION)
        ]
        made.append((session, runs[0]))
        if number % AT_ONCE == AT_ONCE - 1 or number == count - 1:
            rows.rows["runs"] = [(*row[:6], int(experiment), *row[7:]) for row in rows.rows["runs"]]
            rows.write(database)
    database.exec_driver_sql("UPDATE runs SET user_id = 'somebody' WHERE user_id IS NULL")
    database.commit()
    return made


def versions(database: sa.Connection, sessions: list[tuple[str, str]]) -> None:
    """Write a version for each session, as the model's only version is."""
    for table in ("model_versions", "model_version_tags"):
        found = sa.Table(table, sa.MetaData(), autoload_with=database)
        of_model = sa.select(found).where(found.c.name == MODEL)
        samples = [dict(row) for row in database.execute(of_model).mappings()]
        made = []
        for number, (session, run) in enumerate(sessions, int(samples[0]["version"]) + 1):
            own = {"version": number, "run_id": run}
            for sample in samples:
                value = {"value": session} if sample.get("key") == SESSION_ID else {}
                made.append({**sample, **{key: own[key] for key in own if key in sample}, **value})
        database.execute(found.insert(), made)
    database.commit()


def ledger(database: sa.Connection, count: int) -> None:
    """Continue the ledger with rows about versions of this name that are gone, as the gate reads them again."""
    signer = load_signer(key_folder())
    newest = database.execute(sa.select(LEDGER).order_by(LEDGER.c.seq.desc()).limit(1)).mappings().first()
    last = None if newest is None else Row(**newest)
    for start in range(0, count, 1000):
        chain = []
        for number in range(start, min(start + 1000, count)):
            last = signed(replace(record(number), model=MODEL), last, signer)
            chain.append(vars(last))
        database.execute(LEDGER.insert(), chain)
    database.commit()


def filled(store: str, uri: str, runs: int, count: int, said: Path) -> None:
    """Write the store; into `said` go a session and the versions that wait for the gate.

    The champion, the versions to judge and the first one are made as usual, the others straight in the database.
    """
    client = prepare_store(store)
    recorded = Recorded(client=client, uri=store, experiment=client.create_experiment("load"), model=MODEL)
    recorded.version()
    with sa.create_engine(uri, poolclass=sa.pool.NullPool).connect() as database:
        made = sessions(database, recorded.experiment, runs // (1 + IN_SESSION))
        versions(database, made[-(count - 2 - SELDOM) :])
        ledger(database, ROWS_EACH * count)
        database.exec_driver_sql("ANALYZE")
        database.commit()
    bless(client, MODEL, replace(recorded, seed=0).version(), "a baseline for the measurement")
    said.write_text(" ".join([made[len(made) // 2][0], *(recorded.version() for _ in range(SELDOM))]))


def asked(store: str, said: Path, answer: Path) -> None:
    """Measure in this process, whose libraries are loaded."""
    session, version, *_ = said.read_text().split()
    client = prepare_store(store)
    policy = policy_for(client, MODEL, version, None)
    found = {
        "decision_s": timed(SELDOM, lambda: gatekeeper.gate(client, MODEL, version, policy, promote=False)),
        "gate_s": timed(SELDOM, lambda: api.gate(MODEL, version, promote=False, tracking_uri=store)),
        "children_s": timed(OFTEN, lambda: child_runs(client, session)),
    }
    assert len(child_runs(client, session)) == IN_SESSION
    answer.write_text(json.dumps(found))


def timed(count: int, call: Callable[[], Any]) -> float:
    """Seconds of a call: the median, and no first call, which loads what a process needs once."""
    call()
    took = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def command(store: str, said: Path, folder: Path) -> float:
    """Seconds of `canary gate` from its start to its end: the median over the versions that wait."""
    took = []
    for version in said.read_text().split()[1:]:
        began = time.perf_counter()
        words = ("-m", "canary_mlflow.cli", "gate", MODEL, version, "--tracking-uri", store)
        done = Workplace(folder=folder).start(*words, **ADMIN)
        out, err = done.communicate()
        took.append(time.perf_counter() - began)
        assert done.returncode in (0, 1, 3), out + err
    return statistics.median(took)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in the folder, where a store without a server keeps its artifacts, and as the one who may bless."""
    before = Path.cwd()
    os.chdir(folder)
    os.environ |= ADMIN
    try:
        yield
    finally:
        os.chdir(before)


def registry(kind: str, direct: bool, folder: Path, *, runs: int, count: int) -> dict[str, Any]:
    """Fill a store and measure it. `direct`: without a server."""
    said, answer = folder / "said", folder / "answer"
    with place(kind, "direct" if direct else "users", folder) as made, inside(folder):
        assert apart(filled, made.store, made.database, runs, count, said) == 0
        assert apart(asked, made.store, said, answer) == 0
        took = {**json.loads(answer.read_text()), "command_s": command(made.store, said, folder)}
        with sa.create_engine(made.database, poolclass=sa.pool.NullPool).connect() as database:
            tables = ("runs", "metrics", "model_versions", "canary_ledger")
            sizes = {table: database.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() for table in tables}
    return sizes | {key: round(value, 4) for key, value in took.items()}


def main() -> None:
    """A short measurement on SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        print(registry("sqlite", True, Path(folder), runs=500, count=50))


if __name__ == "__main__":
    main()
