"""What benchmarks/gate.py judges: simulated runs, a folder of published ones, and a store of runs made here."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.signal import lfilter
from sessions import runs_of

from canary_mlflow.gates import Run, Series

STEPS = {"smoke": 100, "perf": 500, "nightly": 2000}
# run-to-run SD, autocorrelation, step SD, share of spikes
NOISE = {
    "quiet": (0.01, 0.3, 0.04, 0.010),
    "typical": (0.02, 0.5, 0.08, 0.015),
    "noisy": (0.03, 0.6, 0.12, 0.020),
    "wild": (0.05, 0.8, 0.15, 0.020),
}
TWICE = "twice the priors"
"""Steps as noisy ones, and whatever decides differs between runs by about twice its shipped prior."""
KINDS = {**NOISE, TWICE: (0.04, 0.6, 0.12, 0.020)}
SMALLEST_POOL = 8


def simulated(
    rng: np.random.Generator,
    name: str,
    tier: str,
    noise: str,
    slow: float = 0.0,
    of_seed: tuple[float, float] = (0.0, 0.0),
) -> Run:
    """One run: a run effect, autocorrelated log-normal steps, spikes of about twice a step, slow first steps; and
    independent loss, memory and evaluation. `of_seed`: (the share of the evaluation's variance that follows from the
    seed, what the seed draws, standard normal)."""
    spread, phi, sigma, share = KINDS[noise]
    of_memory, of_loss = (0.01, 0.03) if noise == TWICE else (0.003, 0.012)
    n = STEPS[tier]
    steps = lfilter([1], [1, -phi], rng.normal(0, sigma * math.sqrt(1 - phi * phi), n))
    steps += np.where(rng.random(n) < share, rng.normal(math.log(2), 0.5, n), 0.0)
    steps += 1.0 * np.exp(-np.arange(n) / 3)
    repeats, drawn = of_seed
    values = {
        "step_time": 0.1 * np.exp(slow + rng.normal(0, spread) + steps),
        "loss": (0.55 + 0.14 * np.exp(-np.arange(n) / n * 3)) * np.exp(rng.normal(0, 0.01, n)),
        "peak_memory": np.array([900 * math.exp(rng.normal(0, of_memory))]),
        "eval_loss": np.array(
            [0.58 * math.exp(math.sqrt(repeats) * of_loss * drawn + math.sqrt(1 - repeats) * rng.normal(0, of_loss))]
        ),
    }
    return _run(name, values)


def slower(run: Run, factor: float) -> Run:
    """The same run with every step `factor` times as long."""
    old = run.series["step_time"]
    times = Series(name="step_time", steps=old.steps, values=old.values * factor)
    return replace(run, run_id=f"{run.run_id}, slower", series={**run.series, "step_time": times})


def folder_pools(folder: Path) -> dict[str, list[Run]]:
    """Pools of unchanged runs, by name: repeats of one training (aa/), systems and record directories (perf/)."""
    pools: dict[str, list[Run]] = {}
    for path in sorted((folder / "aa").glob("*.jsonl.gz")):
        pools |= _repeats(path)
    for path in sorted((folder / "perf").glob("*lora-runs.json.gz")):
        pools |= _systems(path)
    for path in sorted((folder / "perf").glob("*step-ms.json.gz")):
        pools |= _groups(path)
    return {name: runs for name, runs in pools.items() if len(runs) >= SMALLEST_POOL}


def _repeats(path: Path) -> dict[str, list[Run]]:
    pools: dict[str, list[Run]] = defaultdict(list)
    for line in _lines(path):
        if line["name"].startswith("unstable"):
            continue
        rows = line["run"]["history"]
        loss = [row.get("loss") for row in rows] if line["run"].get("algo") != "ppo" else []
        values = {"step_time": [row["step_time"] for row in rows], "loss": [x for x in loss if x is not None]}
        contended = "contended" in line["name"]
        run = _run(f"{path.stem} {line['name']}", {name: np.array(x, dtype=float) for name, x in values.items() if x})
        pools[f"{path.name.split('.')[0].upper()} on a busy CPU: {'2 threads' if contended else '1 thread'}"].append(
            run
        )
    return pools


def _systems(path: Path) -> dict[str, list[Run]]:
    """Runs by system: seconds per sample of each logged block, and the evaluation after it."""
    pools: dict[str, list[Run]] = defaultdict(list)
    for number, run in enumerate(_json(path)):
        blocks = [block[1] for block in run["throughput"]]
        if len(blocks) < 3 or not run["eval"]:
            continue
        after = {samples: loss for samples, loss, _ in run["eval"]}
        evaluated = [after.get(block[0], math.nan) for block in run["throughput"][1:]]
        values = {"step_time": 1 / np.array(blocks[1:]), "eval_loss": np.array(evaluated)}
        pools[f"MLPerf LoRA systems: {run['repo'][-4:]} {run['path'].split('/')[0]} {run['system']}"].append(
            _run(str(number), values)
        )
    return pools


def _groups(path: Path) -> dict[str, list[Run]]:
    pools: dict[str, list[Run]] = {}
    for name, runs in _json(path)["groups"].items():
        made = []
        for run in runs:
            times = np.array(run["step_ms"], dtype=float)[1:] / 1000
            times = times[(times > 0) & (times < 50 * np.median(times))]  # the clock was stopped during evaluations
            made.append(_run(run["path"], {"step_time": times}))
        pools["GPT-2 speedrun records: " + re.sub(r".*/", "", name)] = made
    return pools


def store_pools(uris: Sequence[str]) -> dict[str, list[Run]]:
    """Unchanged finished runs from stores made by this project, by algorithm and tier."""
    pools: dict[str, list[Run]] = defaultdict(list)
    for row, run in (found for uri in uris for found in runs_of(uri)):
        tags = row.data.tags
        if tags.get("canary.fault", "none") in ("none", ""):
            tier = run.workload.get("tier", tags.get("canary.tier", "?"))
            pools[f"{run.workload.get('algo', '?')} {tier}"].append(run)
    return dict(pools)


def _run(name: str, values: dict[str, Any]) -> Run:
    last = len(values["step_time"])
    held = {key: series_of(key, x, last) for key, x in values.items()}
    return Run(run_id=name, seed=None, series=held, last_step=last)


def series_of(name: str, values: Sequence[float], last: int) -> Series:
    """One value per step from 1 on; a single value, such as an evaluation, is at the last step."""
    steps = np.arange(1, len(values) + 1) if len(values) > 1 else np.array([last])
    return Series(name=name, steps=steps, values=np.asarray(values, dtype=np.float64))


def _lines(path: Path) -> Sequence[Any]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def _json(path: Path) -> Any:
    with gzip.open(path, "rt") as file:
        return json.load(file)
