"""Promoters in separate processes, all at once, round after round.

    python tests/guard_race.py URI … --promoters 64 --rounds 20

Every promoter has a version with a PASS against the champion of the round. Every other one asks as `canary gate` does,
verdict and promotion in one transaction; the rest have recorded their verdict before and move the alias as any MLflow
client would. One line of JSON per round: answers, champion, the ledger's champion, rows added.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import sqlalchemy as sa
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

from canary_mlflow.ledger.chain import Kind, damages
from canary_mlflow.ledger.keys import key_folder, load_public, public_files
from canary_mlflow.registry.acts.by_hand import override
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.binding import bind
from canary_mlflow.registry.guard.order import Order, Standing
from canary_mlflow.registry.plugin import guarded_store
from canary_mlflow.tracking.stores.store import prepare_store

FORK = multiprocessing.get_context("fork")
MODEL = "raced"


def order(client: MlflowClient, version: str, against: Standing, *, moves: bool) -> Order:
    """A PASS for a version, as the gate gives it."""
    binding = bind(registry_of(client), client.get_model_version(MODEL, version), ())
    return Order(
        kind=Kind.VERDICT, model=MODEL, version=version, word="PASS", binding=binding, actor="racer", reason="a race",
        grants=True, moves=moves, alias="champion", judged_against=against, tags={"canary.verdict": "PASS"},
    )  # fmt: skip


def promoter(uri: str, pipe: Connection, barrier: Any) -> None:
    """One process: told a version, whom it was judged against and the way, until it is told nothing."""
    try:
        promote(uri, pipe, barrier)
    except BaseException as error:
        pipe.send((0, "", f"{type(error).__name__}: {error}"[:300]))
        barrier.abort()  # nobody waits for the dead
        raise
    os._exit(0)


def promote(uri: str, pipe: Connection, barrier: Any) -> None:
    leave_connections()
    client = MlflowClient(uri, registry_uri=f"canary+{uri}")
    guard: Any = registry_of(client).store
    guard.standing(MODEL)
    barrier.wait()
    while told := pipe.recv():
        version, against, by_alias = told
        asked = None if by_alias else order(client, version, against, moves=True)
        barrier.wait()
        try:
            if asked is None:
                client.set_registered_model_alias(MODEL, "champion", version)
            else:
                guard.carry_out(asked)
        except MlflowException as error:
            pipe.send((int(error.get_http_status_code()), version, str(error.message)))
        else:
            pipe.send((200, version, ""))


def leave_connections() -> None:
    """Those that came along with the fork stay the parent's: a connection is not for two processes."""
    for found in gc.get_objects():
        if isinstance(found, sa.Engine):
            found.dispose(close=False)
    SqlAlchemyStore._engine_map.clear()
    guarded_store.cache_clear()


def race(uri: str, promoters: int, rounds: int) -> Iterator[dict[str, Any]]:
    """What came of each round, and of the whole ledger at the end."""
    client = prepare_store(uri)
    guard: Any = registry_of(client)
    client.create_registered_model(MODEL)
    place = tempfile.mkdtemp(prefix="canary-raced-")
    versions = [str(client.create_model_version(MODEL, place).version) for _ in range(promoters + 1)]
    override(client, MODEL, versions[0], "a start", without_weights=True)
    barrier = FORK.Barrier(promoters)
    pipes = []
    for _ in range(promoters):
        here, there = FORK.Pipe()
        FORK.Process(target=promoter, args=(uri, there, barrier), daemon=True).start()
        pipes.append(here)
    for number in range(rounds):
        against = guard.standing(MODEL)
        rivals = [version for version in versions if version != str(against.version)]
        for version in rivals[1::2]:
            guard.record(order(client, version, against, moves=False))
        before = len(guard.rows(everywhere=True))
        started = time.perf_counter()
        for index, (pipe, version) in enumerate(zip(pipes, rivals, strict=True)):
            pipe.send((version, against, index % 2 == 1))
        answers = [pipe.recv() for pipe in pipes]
        rows = guard.rows(everywhere=True)
        yield {
            "round": number + 1,
            "answers": {str(code): many for code, many in sorted(Counter(code for code, _, _ in answers).items())},
            "won": [version for code, version, _ in answers if code == 200],
            "champion": str(client.get_registered_model(MODEL).aliases["champion"]),
            "ledger": str(registry_of(client).moves(MODEL)[0].version),
            "rows_added": len(rows) - before,
            "strange": sorted({said for code, _, said in answers if code not in (200, 409)}),
            "seconds": round(time.perf_counter() - started, 2),
        }
    for pipe in pipes:
        pipe.send(None)
    rows = guard.rows(everywhere=True)
    yield {"rows": len(rows), "damages": [str(one) for one in damages(rows, trusted())]}


def trusted() -> Any:
    return load_public(public_files(key_folder()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("uris", nargs="+", metavar="URI")
    parser.add_argument("--promoters", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    for uri in asked.uris:
        for found in race(uri, asked.promoters, asked.rounds):
            print(json.dumps({"uri": uri, **found}), flush=True)
    sys.exit(0)
