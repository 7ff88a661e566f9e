"""What the guard costs: alias moves and unguarded registry calls against stock MLflow's, and checking a long ledger.

    python benchmarks/guard.py [--moves 60] [--rounds 5] [--rows 10000]

Stock and guarded store work on the same database in one process, taking turns call by call; medians over a round's
calls, then over the rounds. `move by the gate`: verdict recorded and alias moved in one transaction, as `canary gate`
does. `move by alias`: the verdict already exists and any MLflow client sets the alias, for which the guard reads the
version's evidence again. Stock moves an unguarded alias. SQLite always, PostgreSQL if it is installed. The last line is
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.environ.setdefault("CANARY_KEYS", tempfile.mkdtemp(prefix="canary-bench-keys-"))

from cluster import binaries, cluster  # noqa: E402  # the path is set above
from mlflow import MlflowClient  # noqa: E402

from canary_mlflow.ledger.chain import Kind, Record, Row, damages, signed  # noqa: E402
from canary_mlflow.ledger.keys import key_folder, load_public, load_signer, public_files  # noqa: E402
from canary_mlflow.registry.backends import registry_of  # noqa: E402
from canary_mlflow.registry.guard.binding import bind  # noqa: E402
from canary_mlflow.registry.guard.order import Order  # noqa: E402
from canary_mlflow.tracking.stores.store import prepare_store  # noqa: E402

MODEL, OTHER = "guarded", "unguarded-alias"
THEIRS = "of-another-team"  # no row of the ledger is about it
Call = Callable[[int], Any]


class Bench:
    """A model with two versions, and a stock and a guarded client of the same database."""

    def __init__(self, uri: str) -> None:
        self.client = prepare_store(uri)
        self.guard: Any = registry_of(self.client).store
        self.stock = MlflowClient(tracking_uri=uri, registry_uri=uri)
        place = tempfile.mkdtemp(prefix="canary-bench-")
        for model in (MODEL, THEIRS):
            self.client.create_registered_model(model)
        for _ in range(2):
            self.client.create_model_version(THEIRS, place)
        self.versions = [str(self.client.create_model_version(MODEL, place).version) for _ in range(2)]

    def order(self, version: str, *, moves: bool) -> Order:
        """A PASS against the current champion."""
        found = self.client.get_model_version(MODEL, version)
        binding = bind(registry_of(self.client), found, ())
        return Order(
            kind=Kind.VERDICT, model=MODEL, version=version, word="PASS", binding=binding, actor="bench",
            reason="a benchmark", grants=True, moves=moves, alias="champion",
            judged_against=self.guard.standing(MODEL), tags={"canary.verdict": "PASS"},
        )  # fmt: skip

    def version(self, number: int) -> str:
        """The version that is not champion in this turn."""
        return self.versions[number % 2]


def timed(call: Callable[[], Any]) -> float:
    """Wall milliseconds of a call."""
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


def moves(bench: Bench, count: int) -> Iterator[tuple[str, float]]:
    """(kind, milliseconds) of each kind of move, in turn."""
    for number in range(count):
        version = bench.version(number)
        yield "stock move", timed(lambda v=version: bench.stock.set_registered_model_alias(MODEL, OTHER, v))
        order = bench.order(version, moves=True)
        yield "move by the gate", timed(lambda o=order: bench.guard.carry_out(o))
        version = bench.version(number + 1)
        bench.guard.carry_out(bench.order(version, moves=False))
        yield "move by alias", timed(lambda v=version: bench.client.set_registered_model_alias(MODEL, "champion", v))
        bench.guard.carry_out(bench.order(bench.version(number), moves=True))  # moved back for the next turn


def plain_calls(client: MlflowClient) -> dict[str, Call]:
    """The calls that the guard does not check."""
    return {
        "set an unguarded alias": lambda n: client.set_registered_model_alias(MODEL, OTHER, str(1 + n % 2)),
        "set a champion that is not guarded": lambda n: client.set_registered_model_alias(
            THEIRS, "champion", str(1 + n % 2)
        ),
        "get a version": lambda n: client.get_model_version(MODEL, "1"),
        "search versions": lambda n: client.search_model_versions(f"name = '{MODEL}'"),
        "tag a version": lambda n: client.set_model_version_tag(MODEL, "1", "note", str(n)),
        "get by alias": lambda n: client.get_model_version_by_alias(MODEL, OTHER),
    }


def unguarded(bench: Bench, count: int) -> Iterator[tuple[str, float]]:
    """(call, milliseconds) of the same calls by both stores, which take turns in going first."""
    both = {"stock": plain_calls(bench.stock), "guarded": plain_calls(bench.client)}
    for number in range(count):
        for name in both["stock"]:
            for side in ("stock", "guarded") if number % 2 else ("guarded", "stock"):
                yield f"{side}: {name}", timed(lambda s=side, n=name, i=number: both[s][n](i))


def measure(uri: str, count: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of each call."""
    bench = Bench(uri)
    for _ in (*moves(bench, 3), *unguarded(bench, 3)):
        pass  # connections, caches
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        taken: dict[str, list[float]] = {}
        for name, milliseconds in (*moves(bench, count), *unguarded(bench, count)):
            taken.setdefault(name, []).append(milliseconds)
        for name, some in taken.items():
            found.setdefault(name, []).append(median(some))
    return {name: median(some) for name, some in found.items()}


def checking(rows: int) -> float:
    """Seconds to check chain and signatures of that many rows."""
    signer = load_signer(key_folder())
    chain: list[Row] = []
    for number in range(rows):
        facts = {"runs": {f"{number:032x}": "sha256:" + "0" * 64}, "actor": "bench", "reason": "a benchmark"}
        record = Record(
            kind=Kind.VERDICT, model=MODEL, version=number + 1, version_created=number, alias="champion", word="PASS",
            grants=True, moves=False, facts=facts,
        )  # fmt: skip
        chain.append(signed(record, chain[-1] if chain else None, signer))
    keys = load_public(public_files(key_folder()))
    seconds = timed(lambda: list(damages(chain, keys))) / 1000
    assert not list(damages(chain[:100], keys))
    return seconds


def table(found: dict[str, dict[str, float]]) -> Iterator[str]:
    """The table's lines: milliseconds and ratios to stock."""
    yield "| call | " + " | ".join(f"{store}: stock, guarded (ratio)" for store in found) + " |"
    yield "|---|" + "---|" * len(found)
    plain = [name.removeprefix("stock: ") for name in next(iter(found.values())) if name.startswith("stock: ")]
    pairs = [(name, "stock move", name) for name in ("move by the gate", "move by alias")]
    for label, stock, ours in (*pairs, *((name, f"stock: {name}", f"guarded: {name}") for name in plain)):
        cells = (f"{each[stock]:.2f}, {each[ours]:.2f} ms ({each[ours] / each[stock]:.2f})" for each in found.values())
        yield f"| {label} | {' | '.join(cells)} |"


def main() -> int:
    """Measure both databases, then the ledger."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=60, help="calls of each kind in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000, help="of the ledger that is checked")
    asked = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        found = {"SQLite": measure(f"sqlite:///{folder}/mlflow.db", asked.moves, asked.rounds)}
        if binaries() is not None:
            postgres = stack.enter_context(cluster())
            postgres.run("CREATE DATABASE mlflow")
            found["PostgreSQL"] = measure(postgres.uri("mlflow"), asked.moves, asked.rounds)
    seconds = checking(asked.rows)
    print("\n".join(table(found)))
    print(f"\n{asked.rows:,} rows of a ledger checked in {seconds:.2f} s.")
    print(json.dumps({"benchmark": "guard", "milliseconds": found, "rows": asked.rows, "check_s": round(seconds, 3)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
