"""Does the embedded PPO canary learn on every seed? Score, KL and seconds per run, and what the gate says about them.

    python benchmarks/ppo_learns.py --draw 50 --commit REV [--folder PLACE] [--figure FILE.svg] [key=value …]

The seeds are drawn from a commit's hash, so that nobody chose them; `--seeds 0 1 2` names them instead. Runs are made
as sessions make them, in forked processes; with `--folder` they are kept, and existing ones are not made again. Further
words are overrides, as for `python -m training`: `tier=perf` and so on.

Then unchanged comparisons: as many runs per side as a session of the tier has, first each run in only one comparison,
then `--pairings` at random. Last, the seconds of a session of one run. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

if TYPE_CHECKING:
    from canary_mlflow.gates import Policy, Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", type=int, default=0, metavar="N", help="draw so many seeds from the commit's hash")
    parser.add_argument("--commit", default="HEAD", help="the commit whose hash is used")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, help="keeps the runs, and has those of an earlier call")
    parser.add_argument("--figure", type=Path, help="draw score and KL over the iterations into this file")
    parser.add_argument("--pairings", type=int, default=200, help="random unchanged comparisons")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", options.commit], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    seeds = drawn(commit, options.draw) if options.draw else options.seeds
    with tempfile.TemporaryDirectory() as scratch:
        place = options.folder or Path(scratch)
        runs = trained(place / "runs", seeds, options.overrides)
        session = seconds_of_a_session(Path(scratch) / "session", seeds[0], options.overrides)
    config = composed(options.overrides)
    found = figures(runs)
    if options.draw:
        print(f"seeds drawn from {commit}")
    table(runs, found["lost"])
    judged = {}
    for name, pairs in pairings(runs, repeats_of(config), options.pairings).items():
        judged[name] = verdicts(policy_of(config), pairs)
        print(f"unchanged comparisons, {name}: {judged[name]}")
    print("a session of one run: {wall:.0f} s, {cpu:.0f} s of CPU".format(**session))
    if options.figure:
        draw(options.figure, runs, config.algo.target_kl)
    print(json.dumps({"benchmark": "ppo_learns", **found, "judged": judged, "session": session}))


def drawn(commit: str, count: int) -> list[int]:
    """`count` different seeds below a million, from the commit's hash and the seeds' numbers."""
    seeds: list[int] = []
    for number in range(2 * count):
        seed = int(hashlib.sha256(f"{commit} {number}".encode()).hexdigest(), 16) % 1_000_000
        if seed not in seeds and len(seeds) < count:
            seeds.append(seed)
    return seeds


def composed(overrides: list[str]) -> Any:
    """The configuration that these overrides make."""
    from canary_mlflow.training.command_line import parse
    from canary_mlflow.training.compose import check, register_schemas

    register_schemas()
    return check(parse(["algo=ppo", "hardware=cpu", *overrides]))[0]


def repeats_of(config: Any) -> int:
    """How many runs a session has."""
    return int(config.tier.repeats if config.repeats is None else config.repeats)


def policy_of(config: Any) -> Policy:
    """The policy of the tier."""
    from canary_mlflow.policies import load_policy

    return load_policy(config.tier.name)


def trained(folder: Path, seeds: list[int], overrides: list[str]) -> list[Run]:
    """A run per seed; those that `folder` already has are not trained again."""
    from forked_runs import ForkedRuns
    from sessions import runs_of

    folder.mkdir(parents=True, exist_ok=True)
    forked = ForkedRuns(folder)
    there = runs_of(forked.uri) if (folder / "mlflow.db").exists() else []
    had = {run.seed: run for row, run in there if row.info.status == "FINISHED"}
    try:
        return [had[seed] if seed in had else forked.train("algo=ppo", f"seed={seed}", *overrides) for seed in seeds]
    finally:
        forked.close()


def seconds_of_a_session(folder: Path, seed: int, overrides: list[str]) -> dict[str, float]:
    """The seconds that `python -m training algo=ppo repeats=1 register=false` takes, and its exit code."""
    from sessions import train

    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    code = train(folder, ["algo=ppo", f"seed={seed}", "repeats=1", "register=false", *overrides])
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": round(wall, 1), "cpu": round(cpu, 1), "code": code}


def last_third(run: Run, name: str) -> float:
    values = run.series[name].values
    return float(np.mean(values[-(len(values) // 3) :]))


def figures(runs: list[Run]) -> dict[str, Any]:
    """What the runs gained, and how far apart they are at the end."""
    start = mean(float(run.series["score_mean"].values[0]) for run in runs)
    ends = {
        "score": [last_third(run, "score_mean") for run in runs],
        "held_out": [float(run.series["eval_reward"].values[-1]) for run in runs],
        "reward": [last_third(run, "reward_mean") for run in runs],
        "kl": [last_third(run, "kl") for run in runs],
        "entropy": [last_third(run, "entropy") for run in runs],
    }
    spread = {name: [round(mean(values), 3), round(stdev(values), 3)] for name, values in ends.items()}
    gain = mean(ends["held_out"]) - start
    return {
        "runs": len(runs),
        "learned": sum(run.learned is True for run in runs),
        "lost": {run.run_id: run.critical_held for run in runs if run.critical_held},
        "start": round(start, 2),
        "gain": round(gain, 3),
        "spread_of_gain": round(stdev(ends["held_out"]) / gain, 3),
        "mean_and_sd": spread,
    }


def table(runs: list[Run], lost: dict[str, str]) -> None:
    print(f"{'seed':>7}{'score, first':>14}{'last third':>12}{'held out':>10}{'KL':>7}{'CPU s':>7}  learned")
    for run in runs:
        score, cpu = run.series["score_mean"].values, run.series["iteration_cpu_time"].values.sum()
        ends = last_third(run, "score_mean"), run.series["eval_reward"].values[-1], last_third(run, "kl")
        said = f"{'yes' if run.learned else 'no'} {lost.get(run.run_id, '')}"
        print(f"{run.seed!s:>7}{score[0]:14.2f}{ends[0]:12.2f}{ends[1]:10.2f}{ends[2]:7.1f}{cpu:7.1f}  {said}")


def pairings(runs: list[Run], repeats: int, count: int) -> dict[str, list[tuple[list[Run], list[Run]]]]:
    """Sides of `repeats` runs: each run once, and `count` times at random."""
    whole = len(runs) // (2 * repeats) * 2 * repeats
    parts = [runs[first : first + repeats] for first in range(0, whole, repeats)]
    random = np.random.default_rng(0)
    shuffled = [[runs[i] for i in random.permutation(len(runs))[: 2 * repeats]] for _ in range(count)] if whole else []
    return {
        "each run once": list(zip(parts[::2], parts[1::2], strict=True)),
        "at random": [(some[:repeats], some[repeats:]) for some in shuffled],
    }


def verdicts(policy: Policy, pairs: list[tuple[list[Run], list[Run]]]) -> dict[str, Any]:
    """How many of each outcome, and how often each check prevented a PASS."""
    from canary_mlflow.gates import Outcome, Version, judge
    from canary_mlflow.gates.model.verdict import CheckOutcome

    outcomes: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    for sides in pairs:
        verdict = judge(policy, *(Version(model="m", version=None, runs=tuple(side)) for side in sides))
        outcomes[verdict.outcome.value] += 1
        if verdict.outcome is not Outcome.PASS:
            deciding = (CheckOutcome.BLOCK, CheckOutcome.INCONCLUSIVE)
            causes.update(check.metric for check in verdict.checks if check.outcome in deciding)
    return {**outcomes, "causes": dict(causes)}


def draw(path: Path, runs: list[Run], target: float) -> None:
    """Two panels: score and KL over the iterations, a line per run."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "canary"  # the same data draw the same file
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
    for run in runs:
        left.plot(run.series["score_mean"].values, linewidth=0.6, color="tab:blue", alpha=0.5)
        right.plot(run.series["kl"].values, linewidth=0.6, color="tab:blue", alpha=0.5)
    right.axhline(target, color="black", linestyle=":", linewidth=1)
    left.set(title="score", xlabel="iteration")
    right.set(title="KL per answer, nats (dotted: target)", xlabel="iteration")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
