"""What the watch says about labelled histories, and its loss rule's limits tuned on one half, scored on the other."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import watch_peers as peers
from watch_recorded import share

from canary_mlflow.files.names import name_of_column
from canary_mlflow.gates.watch import Watch, WatchPolicy
from canary_mlflow.policies import load_watch

MUST_CATCH = ("diverged", "nan", "zero_loss", "collapsed", "frozen")
_TYPES = ("grpo", "rloo", "ppo", "rl", "dpo", "kto", "reward")
VERDICTS = ("healthy", "warned", "critical", "failed")
LOST = ("critical", "failed")


def verdict(policy: WatchPolicy, rows: peers.Rows) -> str:
    watch = Watch(policy)
    for step, row in rows:
        watch.observe(step, row)
    watch.finish(True)
    return watch.verdict


def labelled(folder: Path) -> list[tuple[dict[str, Any], peers.Rows]]:
    """(manifest line, rows) of each history; null counts as absent. A FILE.jsonl.gz has the labels in its lines."""
    alone = folder.is_file()
    manifest = None if alone else json.loads((folder / "manifest.json").read_text())
    found = []
    with gzip.open(folder if alone else folder / "histories.jsonl.gz", "rt") as lines:
        for at, line in enumerate(lines):
            body = json.loads(line)
            entry = body if manifest is None else manifest[at]
            columns = [(name_of_column(name), values) for name, values in body["series"].items()]
            rows = [
                (step, {name: float(values[at]) for name, values in columns if values[at] is not None})
                for at, step in enumerate(body["step"])
            ]
            found.append((entry, rows))
    return found


def is_healthy(entry: dict[str, Any]) -> bool:
    return str(entry["label"]).startswith("healthy")


def trainer_type(entry: dict[str, Any]) -> str:
    """grpo, rloo, ppo, rl (all other policies), dpo (also ORPO), kto, reward or sft (all else that learns from
    examples)."""
    kind = str(entry["kind"])
    return {"orpo": "dpo"}.get(kind, kind if kind in _TYPES else "sft")


def histories(arguments: argparse.Namespace) -> dict[str, Any]:
    runs, policy = labelled(arguments.folder), load_watch()
    by_label: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    by_type: dict[str, Counter[str]] = defaultdict(Counter)
    for entry, rows in runs:
        found = verdict(policy, rows)
        kind = trainer_type(entry)
        by_label[kind, "healthy" if is_healthy(entry) else entry["label"]][found] += 1
        if is_healthy(entry):
            by_type[kind][found] += 1
    print(f"{'type':6s}{'label':24s}{'runs':>6s}" + "".join(f"{name:>10s}" for name in VERDICTS))
    for (kind, label), counts in sorted(by_label.items()):
        print(f"{kind:6s}{label:24s}{counts.total():6d}" + "".join(f"{counts[name]:10d}" for name in VERDICTS))
    print(f"\n{'healthy':8s}{'runs':>6s}{'any warning':>20s}{'CRITICAL':>20s}")
    for kind, counts in sorted(by_type.items()):
        count, lost = counts.total(), sum(counts[name] for name in LOST)
        print(f"{kind:8s}{count:6d}{share(count - counts['healthy'], count):>20s}{share(lost, count):>20s}")
    result = {"benchmark": "watch histories", "runs": len(runs), **_score(policy, runs)}
    if arguments.leave_out:
        result["leave_out"] = _leave_out(policy, runs)
    return result


def _score(policy: WatchPolicy, runs: list[tuple[dict[str, Any], peers.Rows]]) -> dict[str, Any]:
    healthy = [verdict(policy, rows) for entry, rows in runs if is_healthy(entry)]
    failing = [verdict(policy, rows) for entry, rows in runs if entry["label"] in MUST_CATCH]
    return {
        "healthy": len(healthy),
        "healthy_critical": sum(one in LOST for one in healthy),
        "healthy_stop": healthy.count("failed"),
        "healthy_warned": healthy.count("warned"),
        "failing": len(failing),
        "caught": sum(one in LOST for one in failing),
    }


def _leave_out(policy: WatchPolicy, runs: list[tuple[dict[str, Any], peers.Rows]]) -> list[dict[str, Any]]:
    """The loss rule's limits chosen on one half of the repositories, scored on the other."""
    halves: tuple[list[Any], list[Any]] = ([], [])
    for entry, rows in runs:
        halves[hashlib.sha256(entry["repo"].encode()).digest()[0] % 2].append((entry, rows))
    found = []
    for tuned, other in (halves, halves[::-1]):
        scored = []
        for noise, critical, lost in itertools.product((2.5, 3.0, 4.0), (4.0, 5.0), (0.0, 0.2, 0.4)):
            gain = replace(policy.gain, noise=noise, critical_noise=critical, lost=lost)
            score = _score(replace(policy, gain=gain), tuned)
            cost = 10 * (score["failing"] - score["caught"]) + 5 * score["healthy_stop"] + score["healthy_critical"]
            scored.append((cost, score["healthy_warned"], (noise, critical, lost), gain))
        _, _, chosen, gain = min(scored, key=lambda one: one[:3])
        result = {"chosen": chosen, "other_half": _score(replace(policy, gain=gain), other)}
        found.append({**result, "shipped_on_other_half": _score(policy, other)})
        print(f"\nleave out: noise, critical_noise, lost = {chosen}; on the other half: {result['other_half']}")
    return found
