"""What `canary audit verify` costs: CPU seconds for ledgers of many rows, as the command reads and checks them.

    python benchmarks/ledger.py --rows 10000 100000

Half of the rows are verdicts of 15 kB, as the smoke policy's are; the others are seals or ends of sessions of 1 kB.
Loading MLflow (3 s, once per command) is not counted. Then what the guard asks about sessions before a verdict: the
rows of one session, and whether another session's rows name a run, each as the median of 20.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]
os.environ["CANARY_KEYS"] = tempfile.mkdtemp(prefix="canary-bench-keys-")

import sqlalchemy as sa  # noqa: E402  # the path is set above
from click.testing import CliRunner  # noqa: E402

from canary_mlflow.cli import canary  # noqa: E402
from canary_mlflow.ledger.chain import Kind, Record, Row, signed  # noqa: E402
from canary_mlflow.ledger.keys import key_folder, load_signer  # noqa: E402
from canary_mlflow.ledger.table import LEDGER  # noqa: E402
from canary_mlflow.registry.plugin import guarded_store  # noqa: E402
from canary_mlflow.tracking.stores.store import prepare_store  # noqa: E402

CHECKS = 40  # of a verdict: 15 kB of text
CHUNK = 1000  # rows written at once


def facts(number: int) -> dict[str, object]:
    """What a verdict's row holds besides its columns."""
    evidence = {"candidate": 1.234567 + number, "baseline": 1.234561, "spread": 0.01, "low": -0.01, "high": 0.012}
    check = {"role": "gate", "outcome": "PASS", "unit": "s", "evidence": {**evidence, "runs": [0.1] * 10}}
    reason = "no worse than the champion: the difference lies within the margin, at the error level of the policy"
    checks = [{"metric": f"metric_{which}", "reason": reason, **check} for which in range(CHECKS)]
    return {
        "verdict": {"checks": checks}, "runs": {f"{number:031x}{which}": "0" * 64 for which in range(6)},
        "actor": "bench", "reason": reason, "time": "2026-11-21T10:00:00.000+00:00",
    }  # fmt: skip


def record(number: int) -> Record:
    """A verdict, or in turn a seal or a session's end; verdicts and seals are about versions deleted since then."""
    verdict = number % 2 == 0
    if number % 4 == 1:
        return ended(number)
    plain = {"actor": "bench", "reason": "3 files", "time": "2026-11-21T10:00:00.000+00:00"}
    files = {"files": {f"model-{which}.safetensors": "0" * 64 for which in range(5)}}
    return Record(
        kind=Kind.VERDICT if verdict else Kind.SEAL, model=f"m{number % 7}", version=number // 2 + 1,
        version_created=number // 2, alias="champion" if verdict else "", word="PASS" if verdict else "sealed",
        grants=verdict, moves=False, facts=facts(number) if verdict else {**plain, **files},
    )  # fmt: skip


def ended(number: int) -> Record:
    """The end of a session of three runs."""
    named = {"digest": "0" * 64, "role": "run", "beside": "", "failure": "", "deleted": False, "whole": True}
    runs = {run_id(number, seed): {**named, "seed": str(seed)} for seed in range(3)}
    said = {"runs": runs, "code": "0" * 64, "actor": "bench", "time": "2026-11-21T10:00:00.000+00:00"}
    return Record(
        kind=Kind.SESSION, model=f"m{number % 7}", version=0, version_created=0, alias=run_id(number, 9), word="ended",
        grants=False, moves=False, facts=said,
    )  # fmt: skip


def run_id(number: int, seed: int) -> str:
    """32 characters, as MLflow's are."""
    return hashlib.md5(f"{number} {seed}".encode(), usedforsecurity=False).hexdigest()


def asked(uri: str, count: int) -> dict[str, float]:
    """CPU milliseconds of each question that the guard asks about sessions."""
    guard = guarded_store(uri, "")
    questions = {
        "session_ms": lambda n: guard.rows(kind="session", alias=run_id(n, 9), everywhere=True),
        "run_ms": lambda n: guard.rows(kind="session", naming=run_id(n, 1), everywhere=True),
    }
    found = {}
    for name, question in questions.items():
        times = []
        for which in range(20):
            began = time.process_time()
            assert len(question(4 * (which * (count // 80)) + 1)) == 1
            times.append(1000 * (time.process_time() - began))
        found[name] = round(statistics.median(times), 2)
    return found


def fill(uri: str, count: int) -> float:
    """Write that many rows; returns the mean length of a row's text."""
    signer, last, length = load_signer(key_folder()), None, 0
    engine = sa.create_engine(uri)
    for start in range(0, count, CHUNK):
        chain: list[Row] = []
        for number in range(start, min(start + CHUNK, count)):
            last = signed(record(number), last, signer)
            chain.append(last)
            length += len(last.body)
        with engine.begin() as connection:
            connection.execute(sa.text("DROP TRIGGER IF EXISTS canary_ledger_insert"))
            connection.execute(LEDGER.insert(), [vars(row) for row in chain])
    guarded_store.cache_clear()
    assert CliRunner().invoke(canary, ["db", "install", "--tracking-uri", uri]).exit_code == 0
    return length / count


def verified(uri: str) -> float:
    """CPU seconds of `canary audit verify`."""
    began = time.process_time()
    done = CliRunner().invoke(canary, ["audit", "verify", "--tracking-uri", uri])
    taken = time.process_time() - began
    assert done.exit_code == 0, done.output[-500:]
    return taken


def main() -> int:
    """Measure in a new database for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    for count in parser.parse_args().rows:
        with tempfile.TemporaryDirectory() as folder:
            uri = f"sqlite:///{folder}/mlflow.db"
            prepare_store(uri)
            guarded_store(uri, "")
            verified(uri)  # an empty ledger, so that everything is loaded before the measurement
            length = fill(uri, count)
            seconds = verified(uri)
            lookups = asked(uri, count)
        print(
            f"{count:,} rows of {length / 1000:.1f} kB in the mean: {seconds:.1f} s of CPU, "
            f"{1e6 * seconds / count:.0f} µs each; the rows of a session in {lookups['session_ms']} ms, "
            f"a run among sessions in {lookups['run_ms']} ms"
        )
        print(json.dumps({"benchmark": "ledger", "rows": count, "cpu_s": round(seconds, 2), **lookups}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
