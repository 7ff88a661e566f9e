"""How often the watch alarms on healthy runs, and how early on failing ones.

    python benchmarks/watch.py histories FOLDER [--leave-out]
    python benchmarks/watch.py runs FOLDER [--algo sft …] [--fault lr_high …] [--healthy 20] [--seeds 5] [--override …]
    python benchmarks/watch.py recorded FILE.jsonl.gz …
    python benchmarks/watch.py bound FILE.jsonl.gz …
    python benchmarks/watch.py worth FILE.jsonl.gz|FOLDER … [--settings]
    python benchmarks/watch.py speed [--rows 100000]

`histories`: labelled runs (manifest.json and histories.jsonl.gz in FOLDER, or a FILE.jsonl.gz that holds its labels),
verdicts by trainer type and label; with --leave-out the loss rule's limits are tuned on half of the repositories and
reported on the other half, both ways.
`recorded`: sessions that watch_sessions.py made to fail at a known step, and healthy ones, beside other judges.
`bound`: how soon the failures of these sessions can be seen at all (watch_bound.py), beside how soon the watch does.
`worth`: on how many sessions and histories each rule changes what is said, with --settings also each number.
`runs` trains in the embedded workloads into FOLDER (what is there already is not trained again) and compares the watch
with the dashboard's fixed limits and with the usual rules, at their own rate of false alarms and at the watch's;
`failure_row` defines the failure. `speed`: CPU seconds for so many rows of one run. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import watch_bound
import watch_histories
import watch_making as making
import watch_peers as peers
import watch_recorded
import watch_worth

from canary_mlflow.files.reading import read_history
from canary_mlflow.gates.watch import Level, Watch
from canary_mlflow.policies import load_watch

CHAMPION_RUNS = 3  # of each algorithm, beside which the watch sees the others


def failure_row(rows: peers.Rows, healthy: list[peers.Rows], algo: str) -> int | None:
    """The row at which a run has failed; None: it has not.

    Loss or gradient norm is not finite, or a probe counted a value that is not; SFT, DPO: the loss is more than 3 times
    the largest of any healthy run; PPO: KL is more than 10 times the largest of any healthy run, or entropy below 10 %
    of the run's first five rows, or the score below the healthy runs' 1 % quantile for ten rows in a row.
    """
    limits = {
        name: max(row[name] for run in healthy for _, row in run if name in row)
        for name in ("loss", "kl")
        if any(name in row for run in healthy for _, row in run)
    }
    rewards = sorted(row["score_mean"] for run in healthy for _, row in run if "score_mean" in row)
    floor = rewards[len(rewards) // 100] if rewards else -math.inf
    first = [row["entropy"] for _, row in rows[:5] if "entropy" in row]
    below = 0
    for at, (_, row) in enumerate(rows):
        if not all(math.isfinite(row[name]) for name in ("loss", "grad_norm") if name in row) or row.get(
            "nonfinite", 0
        ):
            return at
        if algo != "ppo" and row.get("loss", 0) > 3 * limits["loss"]:
            return at
        if algo == "ppo" and row.get("kl", 0) > 10 * limits.get("kl", math.inf):
            return at
        if algo == "ppo" and first and row.get("entropy", math.inf) < 0.1 * statistics.median(first):
            return at
        below = below + 1 if row.get("score_mean", math.inf) < floor else 0
        if below == 10:
            return at
    return None


def runs(arguments: argparse.Namespace) -> dict[str, Any]:
    folder: Path = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    algos = arguments.algo or making.ALGOS
    share = math.ceil(arguments.healthy / len(algos)) + CHAMPION_RUNS
    wanted = [(algo, "none", share) for algo in algos]
    pairs = [pair for pair in making.instabilities() if pair[0] in algos]
    wanted += [
        (algo, fault, arguments.seeds) for algo, fault in pairs if not arguments.fault or fault in arguments.fault
    ]
    for algo, fault, seeds in wanted:
        making.make(folder, algo, fault, seeds, arguments.override)
    made = {
        (algo, fault): [
            list(read_history(path).rows()) for path in sorted(folder.glob(f"{algo}-{fault}-*.jsonl"))[:seeds]
        ]
        for algo, fault, seeds in wanted
    }
    return {"benchmark": "watch runs", "words": arguments.override, **compare(made)}


def compare(made: dict[tuple[str, str], list[peers.Rows]]) -> dict[str, Any]:
    """The watch, the fixed limits and the usual rules on the same runs.

    The first healthy runs of each algorithm are the champion's, for the watch that has them beside it; no judge is
    measured on them.
    """
    policy = load_watch()
    unchanged = {algo: runs for (algo, fault), runs in made.items() if fault == "none"}
    champion = {algo: runs[:CHAMPION_RUNS] for algo, runs in unchanged.items()}
    healthy = {algo: runs[CHAMPION_RUNS:] for algo, runs in unchanged.items()}
    rows = sum(len(run) for runs in healthy.values() for run in runs)
    count = sum(len(runs) for runs in healthy.values())

    def alarms(judge_of: Any, severity: float) -> int:
        return sum(len(judge_of(algo)(run, severity)) for algo, runs in healthy.items() for run in runs)

    result: dict[str, Any] = {"healthy_runs": count, "healthy_rows": rows}
    for level in Level:
        judges = {algo: peers.watched(policy, algo, champion[algo], level) for algo in healthy}
        hit = sum(bool(judges[algo](run, 1.0)) for algo, runs in healthy.items() for run in runs)
        said = alarms(judges.__getitem__, 1.0)
        result[level.name] = {"runs_share": hit / max(count, 1), "per_1000_rows": 1000 * said / max(rows, 1)}
        print(f"healthy: {hit} of {count} runs with {level.name}, {1000 * said / max(rows, 1):.2f} per 1000 rows")
    with_champion = {algo: peers.watched(policy, algo, runs) for algo, runs in champion.items()}.__getitem__
    own = alarms(with_champion, 1.0)
    contenders: list[tuple[str, Any, float]] = [
        ("watch", with_champion, 1.0),
        ("watch, no champion", lambda algo: peers.watched(policy, algo), 1.0),
    ]
    for name, judge in (("fixed limits", peers.dashboard), ("usual rules", peers.usual)):
        contenders.append((name, lambda algo, judge=judge: judge, 1.0))
        tried = (2**step for step in range(40))
        equal = next((one for one in tried if alarms(lambda algo, judge=judge: judge, one) <= own), math.inf)
        contenders.append((f"{name}, as few alarms (x{equal:g})", lambda algo, judge=judge: judge, equal))
    print(f"\n{'':44s}{'false/1000':>11s}{'failed':>8s}{'warned before':>15s}{'lead':>7s}{'share':>7s}{'at it':>7s}")
    result["failing"] = {}
    for name, judge_of, severity in contenders:
        false = 1000 * alarms(judge_of, severity) / max(rows, 1)
        table = _detected(made, healthy, judge_of, severity)
        result["failing"][name] = {"false_per_1000": false, **table}
        print(
            f"{name:44s}{false:11.2f}{table['failed']:8d}{table['warned_before']:15.2f}{table['median_lead']:7.1f}"
            f"{table['median_share']:7.2f}{table['at_failure']:7.2f}"
        )
    for fault, row in result["failing"]["watch"]["by_fault"].items():
        print(f"  {fault:32s} {row}")
    for algo, each in healthy.items():
        for number, run in enumerate(each, 1):
            for warning in peers.warnings(policy, algo, champion[algo])(run):
                said = f"{warning.level.name} {warning.stream} {warning.rule}: {warning.seen}"
                print(f"  false: {algo}, healthy run {number}, step {warning.step}: {said}")
    return result


def _detected(made: Any, healthy: Any, judge_of: Any, severity: float) -> dict[str, Any]:
    """Of runs that failed later than two rows after their fault: share warned before. Of the others: by the failure."""
    leads: list[float] = []
    shares: list[float] = []
    before, sudden = [], []
    by_fault = {}
    for (algo, fault), runs in made.items():
        if fault == "none":
            continue
        onset, row = making.fault_step(fault), defaultdict(int, rows=[])  # `rows`: at which they failed
        for run in runs:
            failed = failure_row(run, healthy.get(algo, []), algo)
            found = [at for at in judge_of(algo)(run, severity) if run[at][0] > onset]
            row["runs"] += 1
            row["alarmed"] += bool(found)
            if failed is None:
                continue
            row["failed"] += 1
            row["rows"].append(failed)
            start = next((at for at, (step, _) in enumerate(run) if step > onset), 0)
            if failed - start <= 2:
                sudden.append(bool(found) and found[0] <= failed + 2)
                row["sudden"] += 1
                continue
            early = bool(found) and found[0] < failed
            before.append(early)
            row["warned_before"] += early
            if early:
                leads.append(failed - found[0])
                shares.append((failed - found[0]) / (failed - start))
        by_fault[f"{algo} {fault}"] = dict(row)
    return {
        "failed": len(before) + len(sudden),
        "warned_before": sum(before) / len(before) if before else math.nan,
        "at_failure": sum(sudden) / len(sudden) if sudden else math.nan,
        "median_lead": statistics.median(leads) if leads else math.nan,
        "median_share": statistics.median(shares) if shares else math.nan,
        "by_fault": by_fault,
    }


_LOGGED = {
    "sft": ("loss", "grad_norm", "learning_rate"),
    "dpo": ("loss", "grad_norm", "learning_rate", "chosen_reward", "rejected_reward", "reward_margin",
            "reward_accuracy", "chosen_logp", "rejected_logp", "entropy"),
    "grpo": ("loss", "grad_norm", "learning_rate", "reward_mean", "reward_std", "kl", "entropy", "response_length",
             "truncated_share", "zero_spread_share", "clip_fraction"),
}  # fmt: skip


def speed(arguments: argparse.Namespace) -> dict[str, Any]:
    """CPU seconds for all rows of a run, by what its trainer logs; medians of three."""
    count = arguments.rows
    result: dict[str, Any] = {"benchmark": "watch speed", "rows": count}
    for algo, names in _LOGGED.items():
        waves = [[2 + 0.3 * math.sin(at * 2.4 + place) for at in range(100)] for place in range(len(names))]
        rows = [dict(zip(names, values, strict=True)) for values in zip(*waves, strict=True)]
        times = []
        for _ in range(3):
            watch = Watch(load_watch(), algo=algo)
            started = time.process_time()
            for at in range(count):
                watch.observe(at, rows[at % 100])
            times.append(time.process_time() - started)
        result[algo] = round(statistics.median(times), 2)
        print(f"{algo:6s}{len(names):4d} series{result[algo]:8.2f} s CPU for {count:,} rows")
    return result


def main() -> int:
    """Measure, print the tables, then the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    old = parts.add_parser("histories")
    old.add_argument("folder", type=Path)
    old.add_argument("--leave-out", action="store_true", help="tune on half of the repositories, report on the other")
    new = parts.add_parser("runs")
    new.add_argument("folder", type=Path)
    new.add_argument("--algo", nargs="*", choices=making.ALGOS, default=[])
    new.add_argument("--fault", nargs="*", default=[], help="default: every fault that makes training unstable")
    new.add_argument("--healthy", type=int, default=20, help="healthy runs, over all algorithms")
    new.add_argument("--seeds", type=int, default=5, help="runs of each fault")
    new.add_argument("--override", nargs="*", default=[], metavar="KEY=VALUE", help="what the trainings get besides")
    kept = parts.add_parser("recorded")
    kept.add_argument("files", type=Path, nargs="+")
    soonest = parts.add_parser("bound")
    soonest.add_argument("files", type=Path, nargs="+")
    worthy = parts.add_parser("worth")
    worthy.add_argument("sets", type=Path, nargs="+", help="recorded sessions, or what `histories` takes")
    worthy.add_argument("--settings", action="store_true", help="each number of the policy too; takes minutes")
    fast = parts.add_parser("speed")
    fast.add_argument("--rows", type=int, default=100_000)
    arguments = parser.parse_args()
    part = {
        "bound": watch_bound.bound,
        "histories": watch_histories.histories,
        "recorded": watch_recorded.recorded,
        "runs": runs,
        "speed": speed,
        "worth": watch_worth.worth,
    }
    result = part[arguments.part](arguments)
    print(json.dumps(_plain(result)))
    return 0


def _plain(value: Any) -> Any:
    """Without NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
