"""How often the gate errs, compared with other judges on the same runs.

    python benchmarks/gate.py [--data FOLDER] [--store sqlite:///mlflow.db …] [--repeats 300] [--write MARKDOWN]

Simulated runs with fixed seeds always; with --data, pools of published unchanged runs (aa/*.jsonl.gz, perf/*.json.gz);
with --store, unchanged runs that this project made. On real pools every judge sees the same random splits without
replacement, and the intervals come from a bootstrap over runs, because splits share runs. Slowdowns of real runs are
their own step times multiplied. Then the time of a decision, and of reading the evidence compared with MLflow's own
call. The last line is one JSON object; --write puts the tables between the marks in a Markdown file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gate_data import NOISE, STEPS, folder_pools, simulated, slower, store_pools  # noqa: E402  # the path is set above
from gate_judges import CALIBRATED, JUDGES, STEP_LIMIT, calibrated  # noqa: E402
from gate_speed import decision_time, reading_times, speed_lines  # noqa: E402
from gate_tables import ours_against_promises, pool_table, simulated_tables, write_tables  # noqa: E402

from canary_mlflow.gates import Run  # noqa: E402

K, M = 5, 3
SESSIONS = 3  # of K unchanged runs each, from which a prior is calibrated
TIERS_OF_POOLS = ("smoke", "perf", "nightly")
EFFECTS = ("unchanged", "at the margin", "1.5 margins")


def factor(tier: str, effect: str) -> float:
    """The factor by which an effect lengthens a step."""
    return {"unchanged": 1.0, "at the margin": 1 + STEP_LIMIT[tier], "1.5 margins": 1 + 1.5 * STEP_LIMIT[tier]}[effect]


def on_simulated_runs(
    tier: str, noise: str, repeats: int, judges: Sequence[str], seed: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Shares of answers: judge → effect → answer. The same runs for all judges and effects."""
    deciders = {name: JUDGES[name] for name in judges if name != CALIBRATED}
    rng = np.random.default_rng([len(tier), len(noise), seed])
    past = np.random.default_rng([len(tier), len(noise), seed, 1])  # separate, so that all judges see the same runs
    counts: Any = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    for _ in range(repeats):
        if CALIBRATED in judges:
            sessions = [[simulated(past, f"c{i}{j}", tier, noise) for j in range(K)] for i in range(SESSIONS)]
            deciders[CALIBRATED] = calibrated(sessions, tier)
        baseline = [simulated(rng, f"a{i}", tier, noise) for i in range(K)]
        candidate = [simulated(rng, f"b{i}", tier, noise) for i in range(M)]
        for effect in EFFECTS:
            slow = [slower(run, factor(tier, effect)) for run in candidate]
            for name, decide in deciders.items():
                counts[name][effect][decide(baseline, slow, tier)] += 1
    return {
        name: {effect: {word: n / repeats for word, n in found.items()} for effect, found in effects.items()}
        for name, effects in counts.items()
    }


def on_a_pool(runs: Sequence[Run], tier: str, splits: int) -> dict[str, dict[str, Any]]:
    """False BLOCK and power per judge over random splits of one pool, with 95 % intervals over its runs."""
    rng = np.random.default_rng(23)
    k, m = (K, M) if len(runs) >= K + M + 2 else (4, 3)
    parts = [rng.permutation(len(runs))[: k + m] for _ in range(splits)]
    drawn = weights(parts, len(runs))
    found: dict[str, dict[str, Any]] = {}
    for name, decide in JUDGES.items():
        found[name] = {}
        for effect in ("unchanged", "1.5 margins"):
            answers = []
            for part in parts:
                baseline = [runs[i] for i in part[:k]]
                candidate = [slower(runs[i], factor(tier, effect)) for i in part[k:]]
                answers.append(decide(baseline, candidate, tier))
            found[name][effect] = {word: answers.count(word) / splits for word in sorted(set(answers))}
            blocked = np.array([answer == "BLOCK" for answer in answers])
            found[name][effect]["interval"] = over_runs(blocked, drawn)
    return found


def weights(parts: Sequence[Any], runs: int, draws: int = 300) -> Any:
    """For a bootstrap over runs, shape (draws, splits): how often the runs of each split were drawn together."""
    rng = np.random.default_rng(29)
    drawn = rng.multinomial(runs, np.full(runs, 1 / runs), size=draws)
    return np.prod(drawn[:, np.array(parts)], axis=2, dtype=float)


def over_runs(hits: Any, drawn: Any) -> tuple[float, float]:
    """95 % interval of the share of splits that are hits; `drawn`: their weights in each draw."""
    some = drawn[drawn.sum(axis=1) > 0]
    shares = some @ hits / some.sum(axis=1)
    low, high = np.quantile(shares, [0.025, 0.975]) if len(shares) else (math.nan, math.nan)
    return float(low), float(high)


def chosen(pools: dict[str, list[Run]], tier: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The results on the pools with enough steps for a tier: logs of few blocks of steps count for each."""
    short = {k: v for k, v in pools.items() if len(v[0].series["step_time"].values) < STEPS["smoke"]}
    return on_pools(
        short if tier == "smoke" else {k: v for k, v in pools.items() if k not in short or "MLPerf" in k},
        tier,
        arguments.splits,
    )


def on_pools(pools: dict[str, list[Run]], tier: str, splits: int) -> dict[str, Any]:
    """The results on all pools that are large enough; a pool's source is the part of its name before the colon."""
    return {
        name: {**on_a_pool(runs, tier, splits), "source": f"{name.split(':')[0]}, {tier}", "runs": len(runs)}
        for name, runs in pools.items()
    }


def main() -> int:
    """Run all parts, print the tables, then the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=300, help="simulated comparisons per cell")
    parser.add_argument("--splits", type=int, default=300, help="random splits per real pool")
    parser.add_argument("--seed", type=int, default=17, help="another one: runs that no threshold has seen")
    parser.add_argument("--tiers", nargs="*", default=list(STEPS), choices=list(STEPS), help="of the simulated grid")
    parser.add_argument(
        "--judges",
        nargs="*",
        default=[*JUDGES, CALIBRATED],
        choices=[*JUDGES, CALIBRATED],
        help="of the simulated grid",
    )
    parser.add_argument("--data", type=Path, help="a folder with aa/ and perf/")
    parser.add_argument("--store", nargs="*", default=[], help="tracking URIs of stores that this project filled")
    parser.add_argument("--no-speed", action="store_true", help="leave the timings out")
    parser.add_argument("--write", type=Path, help="a Markdown file with the two marks")
    arguments = parser.parse_args()
    lines: list[str] = []
    result: dict[str, Any] = {"benchmark": "gate", "repeats": arguments.repeats, "splits": arguments.splits}
    grid = {
        f"{tier} {noise}": on_simulated_runs(tier, noise, arguments.repeats, arguments.judges, arguments.seed)
        for tier in arguments.tiers
        for noise in NOISE
    }
    if set(arguments.tiers) == set(STEPS):
        lines += simulated_tables(grid, arguments.repeats, (K, M))
        result["ours_simulated"] = ours_against_promises(grid, arguments.repeats)
    result["simulated"] = grid
    if arguments.data:
        pools = folder_pools(arguments.data)
        found = {
            f"{tier} {name}": each for tier in TIERS_OF_POOLS for name, each in chosen(pools, tier, arguments).items()
        }
        lines += pool_table("Published runs", found)
        result["published"] = found
    if arguments.store:
        unchanged = store_pools(arguments.store)
        found = on_pools({f"{k}: all": v for k, v in unchanged.items() if len(v) >= K + M}, "smoke", arguments.splits)
        lines += pool_table("Runs of this project", found)
        result["own"] = found
    if not arguments.no_speed:
        result["decision_ms"] = round(decision_time(), 1)
        result["reading_s"] = reading_times()
        lines += speed_lines(result["decision_ms"], result["reading_s"])
    print("\n".join(lines))
    if arguments.write:
        write_tables(arguments.write, lines, "benchmarks/gate.py")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
