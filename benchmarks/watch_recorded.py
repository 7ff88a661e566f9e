"""What the watch says about sessions that were made to fail at a known step, and about healthy ones; by trainer type.

A session counts as failed by what it did after its fault's onset, never by what the watch said: over ten rows

- GRPO, RLOO, PPO: the reward has lost half of what it had gained, and three of its own standard errors; or KL is five
  times its highest mean of ten rows before; or nine tenths of the answers are cut off, where fewer than half were; or
  all answers earn the same, and less than before;
- DPO, KTO: the margin has lost half of what it had gained; or the preferred answers ten nats of log-probability;
- SFT: the loss has taken back half of what it had learned;
- reward models: the margin has lost half of what it had gained, or the loss;
- or a value is not finite, or the session broke off.

STOP is soon if it comes within 15 % of the session after the first of those ten rows.

A fault that brought no failure makes its session none of the failing ones; a session without a fault that breaks off,
runs to the length limit of itself or is no better on held-out data than it began is none of the healthy ones. Both are
counted apart. `ended worse`: so many of the healthy ones that are CRITICAL ended with a reward (DPO, KTO: margin, SFT:
loss) that is worse than the one they began with, by three standard errors.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import watch_peers as peers
from scipy.stats import binomtest

from canary_mlflow.gates.watch import Level, WatchPolicy
from canary_mlflow.policies import load_watch

WINDOW, SOON = 10, 0.15  # rows that say that it failed; share of a run within which STOP is soon
ONLINE, PAIRS = ("grpo", "rloo", "ppo"), ("dpo", "kto")
ALGOS = (*ONLINE, *PAIRS, "sft", "reward")
STEPS = 100


def rows_of(one: dict[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """A session's rows; null counts as absent."""
    series = one["series"].items()
    return [
        (step, {name: float(values[at]) for name, values in series if values[at] is not None})
        for at, step in enumerate(one["step"])
    ]


def failed_from(one: dict[str, Any]) -> int | None:
    """The first of the ten rows in which it failed because of its fault; None if it did not."""
    rows = [row for _, row in rows_of(one)]
    onset = one["onset"]
    before = rows[: onset - 1]
    lost = _loses(one["algo"], before)
    for at in range(onset - 1, len(rows)):
        if not all(math.isfinite(value) for value in rows[at].values()):
            return at + 1
        if at + WINDOW <= len(rows) and lost(rows[at : at + WINDOW]):
            return at + 1
    return len(rows) if len(rows) < STEPS else None


def _loses(algo: str, before: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
    """A function that says whether a session that began with `before` failed in the given ten rows."""
    if algo == "sft":
        return _half_lost(before, "loss", -1)
    if algo == "reward":
        fell, rose = _half_lost(before, "reward_margin", 1), _half_lost(before, "loss", -1)
        return lambda rows: fell(rows) or rose(rows)
    if algo in PAIRS:
        fell = _half_lost(before, "reward_margin", 1)
        had = _mean(before[-WINDOW:], "chosen_logp")
        return lambda rows: fell(rows) or had - _mean(rows, "chosen_logp") > 10
    reward = "score_mean" if "score_mean" in before[0] else "reward_mean"
    fell, had = _half_lost(before, reward, 1), _mean(before[-WINDOW:], reward)
    means = [before[at - WINDOW : at] for at in range(WINDOW, len(before) + 1)]
    was_cut = min(_mean(rows, "truncated_share") for rows in means) >= 0.5
    kl = 5 * max(0.1, *(_mean(rows, "kl") for rows in means))
    return lambda rows: fell(rows) or (not was_cut and _mean(rows, "truncated_share") > 0.9) or _mean(rows, "kl") > kl


def _half_lost(before: Sequence[Any], name: str, sign: int) -> Callable[[Sequence[Any]], bool]:
    had = [sign * row[name] for row in before if name in row]
    level, begun = statistics.fmean(had[-WINDOW:]), statistics.fmean(had[:WINDOW])
    error = statistics.stdev(had[-3 * WINDOW :]) * math.sqrt(2 / WINDOW)  # of the difference of two such means
    least = level - max(0.5 * (level - begun), 3 * error)
    return lambda rows: sign * _mean(rows, name) < least


def _mean(rows: Sequence[Any], name: str) -> float:
    """The mean of a series over the rows; NaN, which is beyond no limit, if no row has it."""
    found = [row[name] for row in rows if name in row]
    return statistics.fmean(found) if found else math.nan


def read(path: Path) -> list[dict[str, Any]]:
    """The sessions of a file."""
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def recorded(arguments: argparse.Namespace) -> dict[str, Any]:
    """The tables of all files."""
    policy, result = load_watch(), {"benchmark": "watch recorded"}
    for path in arguments.files:
        result[path.name.split(".")[0]] = _file(path, policy)
    return result


def _file(path: Path, policy: WatchPolicy) -> dict[str, Any]:
    sessions = read(path)
    print(f"\n{path.name}: {len(sessions)} sessions of {STEPS} rows")
    print(f"{'':8s}{'healthy':>9s}{'warned':>20s}{'CRITICAL':>20s}{'failed':>9s}{'warned':>20s}{'CRITICAL':>20s}"
          f"{'rows to it':>12s}{'STOP soon':>11s}{'saved':>7s}   left out, ended worse")  # fmt: skip
    found = {}
    for algo in ALGOS:
        own = [one for one in sessions if one["algo"] == algo]
        if own:
            found[algo] = _line(algo, own, policy)
    found["peers"] = _peers(sessions, policy)
    return found


def _line(algo: str, sessions: list[dict[str, Any]], policy: WatchPolicy) -> dict[str, Any]:
    said = peers.warnings(policy, algo)
    healthy, failing = healthy_and_failing(sessions)
    levels = [max((warning.level for warning in said(rows_of(one))), default=0) for one in healthy]
    late, stops, saved, by_fault = [], [], [], defaultdict(lambda: [0, 0, 0, 0])
    warned = 0
    for one in failing:
        after = [warning for warning in said(rows_of(one)) if warning.step >= one["onset"]]
        critical = [warning.step for warning in after if warning.level >= Level.CRITICAL and warning.step < STEPS]
        stop = [warning.step for warning in after if warning.level == Level.STOP]
        warned += bool(after)
        late += [critical[0] - one["onset"]] if critical else []
        stops.append(bool(stop) and stop[0] - (failed_from(one) or 0) <= SOON * STEPS)
        saved.append((STEPS - stop[0]) / STEPS if stop else 0.0)
        counts = by_fault[one["fault"]]
        for at, hit in enumerate((1, bool(after), bool(critical), bool(stop))):
            counts[at] += hit
    result = {
        "healthy": len(healthy),
        "healthy_warned": sum(level >= Level.WARN for level in levels),
        "healthy_critical": sum(level >= Level.CRITICAL for level in levels),
        "ended_worse": sum(
            level >= Level.CRITICAL and ended_worse(one) for level, one in zip(levels, healthy, strict=True)
        ),
        "failing": len(failing),
        "warned": warned,
        "critical": len(late),
        "rows_to_critical": statistics.median(late) if late else math.nan,
        "stop_soon": sum(stops) / max(len(stops), 1),
        "saved": statistics.fmean(saved) if saved else math.nan,
        "healthy_that_failed": sum(not one["fault"] for one in sessions) - len(healthy),
        "faults_without_failure": sum(bool(one["fault"]) for one in sessions) - len(failing),
        "by_fault": {name: tuple(counts) for name, counts in sorted(by_fault.items())},
    }
    print(
        f"{algo:8s}{len(healthy):9d}{share(result['healthy_warned'], len(healthy)):>20s}"
        f"{share(result['healthy_critical'], len(healthy)):>20s}{len(failing):9d}{share(warned, len(failing)):>20s}"
        f"{share(len(late), len(failing)):>20s}{result['rows_to_critical']:12.0f}{result['stop_soon']:11.0%}"
        f"{result['saved']:7.0%}   {result['healthy_that_failed']} healthy, {result['faults_without_failure']} faults, "
        f"{result['ended_worse']} of {result['healthy_critical']}"
    )
    return result


def ended_worse(one: dict[str, Any]) -> bool:
    """Whether a session ended worse than it began, by three standard errors of the difference of ten rows' means."""
    rows = [row for _, row in rows_of(one)]
    rewards = ("score_mean", "reward_mean") if one["algo"] in ONLINE else ("reward_margin",)
    name, sign = ("loss", -1) if one["algo"] == "sft" else (next(name for name in rewards if name in rows[0]), 1)
    first, last = ([sign * row[name] for row in some if name in row] for some in (rows[:WINDOW], rows[-WINDOW:]))
    error = math.hypot(statistics.stdev(first), statistics.stdev(last)) / math.sqrt(WINDOW)
    return statistics.fmean(last) < statistics.fmean(first) - 3 * error


def healthy_and_failing(sessions: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(healthy sessions without a fault, sessions that failed because of theirs)."""
    healthy = [one for one in sessions if not one["fault"] and not _ran_off(one)]
    return healthy, [one for one in sessions if one["fault"] and failed_from(one) is not None]


def _ran_off(one: dict[str, Any]) -> bool:
    """Whether a session without a fault broke off, ran to the length limit by itself or learned nothing."""
    rows = [row for _, row in rows_of(one)]
    means = [_mean(rows[at - WINDOW : at], "truncated_share") for at in range(WINDOW, len(rows) + 1)]
    finite = all(math.isfinite(value) for row in rows for value in row.values())
    first, last = one.get("evaluated") or (0.0, math.inf)  # held-out data, where the session's world has some
    return len(rows) < STEPS or not finite or last <= first or (min(means) < 0.5 and max(means) > 0.9)


def share(hits: int, count: int) -> str:
    """A percentage with its exact 95 % interval."""
    if not count:
        return "-"
    low, high = binomtest(hits, count).proportion_ci(method="exact")
    return f"{hits / count:.1%} [{low:.0%}, {high:.0%}]"


def _peers(sessions: list[dict[str, Any]], policy: WatchPolicy) -> dict[str, Any]:
    """About how many healthy and failing sessions each judge warns at all, and after the onset."""
    judges: dict[str, Callable[[str], Callable[[Any], list[int]]]] = {
        "the watch": lambda algo: lambda rows: peers.watched(policy, algo)(rows, 1.0),
        "the watch, CRITICAL": lambda algo: lambda rows: peers.watched(policy, algo, level=2)(rows, 1.0),
        "fixed limits": lambda algo: lambda rows: peers.dashboard(rows, 1.0),
        "usual rules": lambda algo: lambda rows: peers.usual(rows, 1.0),
        "z-score alert": lambda algo: lambda rows: peers.z_score(rows, 1.0),
        "spike rule": lambda algo: lambda rows: peers.spikes(rows, 1.0),
        "the gate's divergence": lambda algo: lambda rows: peers.ends_diverged(rows, algo),
    }
    healthy, failing = healthy_and_failing(sessions)
    print(f"\n{'':22s}{f'alarms in {len(healthy)} healthy':>24s}{f'in {len(failing)} failing, after the onset':>40s}")
    found = {}
    for name, judge in judges.items():
        false = sum(bool(judge(one["algo"])(rows_of(one))) for one in healthy)
        true = sum(any(at >= one["onset"] - 1 for at in judge(one["algo"])(rows_of(one))) for one in failing)
        found[name] = {"false": false / max(len(healthy), 1), "true": true / max(len(failing), 1)}
        print(f"{name:22s}{share(false, len(healthy)):>24s}{share(true, len(failing)):>40s}")
    return found
