"""Makes the runs that the watch is measured on: one session per algorithm and fault, kept as JSONL beside its store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
ALGOS = ("sft", "dpo", "ppo")
# They change speed or memory, which no stability signal shows.
NO_INSTABILITY = {"none", "slow_loader", "slow_step_from_n", "gc_storm", "memory_leak", "memory_ballast"}


def instabilities() -> list[tuple[str, str]]:
    """(algorithm, fault) for every fault of conf/fault that makes training unstable, where it applies."""
    pairs = []
    for path in sorted((ROOT / "conf" / "fault").glob("*.yaml")):
        signals = yaml.safe_load(path.read_text()).get("signals") or {}
        algos = signals if isinstance(signals, dict) else ALGOS
        pairs += [(algo, path.stem) for algo in ALGOS if algo in algos and path.stem not in NO_INSTABILITY]
    return pairs


def make(folder: Path, algo: str, fault: str, seeds: int, words: list[str]) -> None:
    """Train `seeds` runs unless there are some; each run's rows go to <folder>/<algo>-<fault>-<number>.jsonl.

    There may be fewer: PPO ends its session at a value that is not finite.
    """
    if any(folder.glob(f"{algo}-{fault}-*.jsonl")):
        return
    place = folder / f"{algo}-{fault}"
    place.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    done = subprocess.run(
        [sys.executable, "-m", "training", f"algo={algo}", f"fault={fault}", f"repeats={seeds}", *words],
        cwd=place,
        env={**kept, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if done.returncode == 2:
        raise SystemExit(f"{algo} {fault}: {done.stderr.strip()[-500:]}")
    written = 0
    for number, rows in enumerate(_recorded(place), 1):
        lines = "".join(json.dumps({"step": step} | row) + "\n" for step, row in rows)
        (folder / f"{algo}-{fault}-{number}.jsonl").write_text(lines)
        written += 1
    print(f"made {written} runs: {algo} {fault} ({time.perf_counter() - started:.0f} s)", file=sys.stderr, flush=True)


def fault_step(fault: str) -> int:
    """The step after which a fault strikes; 0 from the start."""
    return int(yaml.safe_load((ROOT / "conf" / "fault" / f"{fault}.yaml").read_text()).get("step") or 0)


def _recorded(place: Path) -> Iterator[list[tuple[int, dict[str, float]]]]:
    from canary_mlflow.tracking.histories import read_runs
    from canary_mlflow.tracking.schema import STABILITY
    from canary_mlflow.tracking.store import experiment_id, prepare_store

    client = prepare_store(f"sqlite:///{place}/mlflow.db")
    found = client.search_runs([experiment_id(client, "canary")], "tags.`canary.role` = 'run'", order_by=["start_time"])
    for run in read_runs(client, [one.info.run_id for one in found]):
        rows: dict[int, dict[str, float]] = {}
        for name, series in run.series.items():
            if name in STABILITY:
                for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
                    rows.setdefault(step, {})[name] = value
        yield sorted(rows.items())
