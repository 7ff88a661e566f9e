"""Many promoters at once, each a process: one wins, the ledger says the same, and nothing is lost or stuck."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import forking
import pytest
from cluster import binaries, cluster
from workplace import ROOT

EVERY_DAY, FULL = (16, 2), (64, 20)  # promoters, rounds


@pytest.mark.timeout(1500)
def test_of_promoters_at_once_one_wins_each_round(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    promoters, rounds = FULL if request.config.getoption("--full") else EVERY_DAY
    sqlite = f"sqlite:///{tmp_path}/mlflow.db"
    if binaries() is None:
        races(promoters, rounds, sqlite)
        pytest.skip("PostgreSQL is not installed, SQLite alone was raced: apt-get install postgresql")
    with cluster() as postgres:
        postgres.run("CREATE DATABASE mlflow")
        races(promoters, rounds, sqlite, postgres.uri("mlflow"))


def races(promoters: int, rounds: int, *uris: str) -> None:
    size = ["--promoters", str(promoters), "--rounds", str(rounds)]
    done = subprocess.run(
        [forking.python(), str(ROOT / "tests" / "guard_race.py"), *uris, *size],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, timeout=1400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stdout)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(uris) * (rounds + 1)
    for one in told:
        if "damages" in one:
            assert one["damages"] == []
            continue
        assert one["answers"] == {"200": 1, "409": promoters - 1}, one["strange"]
        assert one["won"] == [one["champion"]] == [one["ledger"]]
        assert one["rows_added"] == 1
