"""How often unchanged code passes the smoke gate here, and how long a session takes.

    python benchmarks/smoke.py --algo dpo --sessions 20 [word …]

Runs real sessions one after the other in a folder of its own, exactly as `python -m training` does. The first is cold
(it makes the store and builds the embedded model) and bootstraps the champion; every later one should PASS and become
the next champion. Wall seconds depend on the neighbours; CPU seconds are those of the session and all its processes.
Further words are overrides.
Then, where the seconds of a session go, by the times that MLflow has: medians over the warm ones. And, over all these
unchanged runs, the spread between runs of the clock, of CPU time, and of CPU time in units of
the sentinel kernel: standard deviations of the logarithm of a run's interquartile mean. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VERDICTS = {0: "PASS", 1: "BLOCK", 2: "wrong use", 3: "INCONCLUSIVE", 4: "broken"}


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session's exit code, wall seconds, CPU seconds (user and system), and when it began."""

    code: int
    seconds: float
    cpu_seconds: float
    began: float  # seconds since the epoch


def session(folder: Path, words: list[str]) -> Session:
    """One session in `folder`, which holds its store and its cache."""
    # Where bytecode may not be written, no session is warm: each process compiles the libraries anew.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_") and k != "PYTHONDONTWRITEBYTECODE"}
    began, started, before = time.time(), time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "training", *words],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), "CANARY_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
    )
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode not in (0, 3):
        print(done.stderr[-3000:], file=sys.stderr)
    return Session(code=done.returncode, seconds=seconds, cpu_seconds=cpu, began=began)


def spreads(folder: Path) -> dict[str, float]:
    """Between-run standard deviation of log IQM, by metric."""
    sys.path.insert(0, str(ROOT))
    from canary_mlflow.gates.model.records import SUMMARIES
    from canary_mlflow.tracking.reading.histories import read_runs
    from canary_mlflow.tracking.stores.store import experiment_id, prepare_store

    client = prepare_store(f"sqlite:///{folder}/mlflow.db")
    found = client.search_runs([experiment_id(client, "canary")], "tags.`canary.role` = 'run'", max_results=1000)
    runs = read_runs(client, [run.info.run_id for run in found])
    metrics = [f"{unit}_{kind}" for unit in ("step", "iteration") for kind in ("time", "cpu_time", "cost")]
    values = {
        name: [math.log(SUMMARIES["iqm"](run.series[name], 10)) for run in runs if name in run.series]
        for name in metrics
    }
    return {name: round(statistics.stdev(logs), 4) for name, logs in values.items() if len(logs) > 1}


def parts(folder: Path, sessions: list[Session]) -> dict[str, float]:
    """Where the wall seconds of a session go, by what happens then: medians over `sessions`."""
    sys.path.insert(0, str(ROOT))
    from canary_mlflow.tracking.stores.store import experiment_id, prepare_store

    client = prepare_store(f"sqlite:///{folder}/mlflow.db")
    found = client.search_runs([experiment_id(client, "canary")], "tags.`canary.role` = 'run'", max_results=1000)
    told = []
    for one in (each for each in sessions if each.code in (0, 1, 3)):  # a broken one has steps missing
        mine = [run for run in found if one.began < run.info.start_time / 1000 < one.began + one.seconds]
        told.append(parts_of(one, client, sorted(mine, key=lambda run: run.info.start_time)))
    return {name: round(statistics.median(each[name] for each in told), 2) for name in (told[0] if told else ())}


def parts_of(one: Session, client: Any, runs: list[Any]) -> dict[str, float]:
    """The same of one session with these runs, in order."""
    before, steps, rest, after = 0.0, 0.0, 0.0, 0.0
    for run in runs:
        points = client.get_metric_history(run.info.run_id, "perf/step_time")
        rows, spent = [point.timestamp / 1000 for point in points], [point.value for point in points]
        before += min(rows) - spent[0] - run.info.start_time / 1000
        steps += sum(spent)
        rest += max(rows) - min(rows) - sum(spent[1:])
        after += run.info.end_time / 1000 - max(rows)
    first, last = runs[0].info.start_time / 1000, runs[-1].info.end_time / 1000
    inside = sum(run.info.end_time - run.info.start_time for run in runs) / 1000
    return {
        "libraries, data and models are loaded": first - one.began,
        "runs: before their first step": before,
        "runs: steps": steps,
        "runs: evaluation and the sentinel, between steps": rest,
        "runs: their end, from the last row to the status": after,
        "between runs: what was saved is evaluated, a process ends": last - first - inside,
        "registered, gated, reported": one.began + one.seconds - last,
    }


def figures(done: list[Session]) -> dict[str, object]:
    """The cold session, the warm ones, and how those were judged."""
    cold, warm = done[0], done[1:]
    outcomes = Counter(VERDICTS[item.code] for item in warm)
    return {
        "sessions": len(warm),
        "outcomes": dict(outcomes),
        "pass_share": outcomes["PASS"] / len(warm),
        "seconds_cold": round(cold.seconds, 1),
        "seconds_warm_median": round(statistics.median(item.seconds for item in warm), 1),
        "seconds_warm_max": round(max(item.seconds for item in warm), 1),
        "cpu_seconds_cold": round(cold.cpu_seconds, 1),
        "cpu_seconds_warm_median": round(statistics.median(item.cpu_seconds for item in warm), 1),
        "load_average": os.getloadavg()[2],
    }


def main() -> int:
    """Run the sessions, print the table, then the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", default="dpo")
    parser.add_argument("--sessions", type=int, default=20, help="judged sessions, after the one that bootstraps")
    parser.add_argument("words", nargs="*", help="further overrides")
    arguments = parser.parse_args()
    words = [f"algo={arguments.algo}", *arguments.words]
    print("session  outcome        seconds  CPU seconds")
    done: list[Session] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.sessions + 1):
            done.append(session(Path(folder), words))
            last = done[-1]
            outcome = f"{'bootstrap' if number == 0 and last.code == 0 else VERDICTS[last.code]:13s}"
            print(f"{number:7d}  {outcome}  {last.seconds:7.1f}  {last.cpu_seconds:11.1f}", flush=True)
        spread, spent = spreads(Path(folder)), parts(Path(folder), done[1:])
    print("\nwhere a warm session's seconds go")
    for name, seconds in spent.items():
        print(f"  {name:58s} {seconds:6.2f}")
    print("\nspread between unchanged runs (SD of log)")
    for name, sd in spread.items():
        print(f"  {name:20s} {sd:7.1%}")
    print(json.dumps({"benchmark": "smoke", "words": words, **figures(done), "spread": spread, "parts": spent}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
