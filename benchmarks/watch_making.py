"""Makes the runs that the watch is measured on: one session per algorithm and fault, kept as JSONL beside its store."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import yaml
from sessions import runs_of, store_of, train

ROOT = Path(__file__).resolve().parents[1]
ALGOS = ("sft", "dpo", "ppo")
# They change speed or memory, which no stability signal shows.
NO_INSTABILITY = {
    "none",
    "slow_loader",
    "slow_step_from_n",
    "stalled_step",
    "gc_storm",
    "memory_leak",
    "memory_ballast",
}


def instabilities() -> list[tuple[str, str]]:
    """(algorithm, fault) for every fault of conf/fault that makes training unstable, where it applies."""
    pairs = []
    for path in sorted((ROOT / "conf" / "fault").glob("*.yaml")):
        signals = yaml.safe_load(path.read_text()).get("signals") or {}
        algos = signals if isinstance(signals, dict) else ALGOS
        pairs += [(algo, path.stem) for algo in ALGOS if algo in algos and path.stem not in NO_INSTABILITY]
    return pairs


def make(folder: Path, algo: str, fault: str, seeds: int, words: list[str]) -> None:
    """Train `seeds` runs unless some exist; each run's rows go to <folder>/<algo>-<fault>-<number>.jsonl.

    There may be fewer, because PPO ends its session at a value that is not finite.
    """
    if any(folder.glob(f"{algo}-{fault}-*.jsonl")):
        return
    place = folder / f"{algo}-{fault}"
    started = time.perf_counter()
    train(place, [f"algo={algo}", f"fault={fault}", f"repeats={seeds}", "watch.on_critical=warn", *words])
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
    from canary_mlflow.gates.model.metrics import METRICS

    for _, run in runs_of(f"sqlite:///{store_of(place)}"):
        rows: dict[int, dict[str, float]] = {}
        for name, series in run.series.items():
            if name in METRICS and METRICS[name].group == "stability":
                for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
                    rows.setdefault(step, {})[name] = value
        yield sorted(rows.items())
