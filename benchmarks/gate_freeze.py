"""Every verdict of the gate on real runs, one letter each, so that a change of rules can list what it changes.

    python benchmarks/gate_freeze.py FOLDER [--write FILE] [--beside benchmarks/data/gate-frozen.json.gz]

FOLDER holds aa/ and perf/. The sets: stretches of benchmark histories (gate_histories.py), random halves of pools of
unchanged runs (gate_data.py) as they are and 1.5 margins slower, and every two sessions of the campaign with other
seeds. `--beside` counts, per set, the verdicts that are not what they were, as `before>now: how many`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gate_data import folder_pools, slower  # noqa: E402  # the path is set above
from gate_histories import as_runs, stretches  # noqa: E402
from gate_judges import STEP_LIMIT, policy_for, verdict  # noqa: E402

from canary_mlflow.gates import Run, Series  # noqa: E402

TIERS = tuple(STEP_LIMIT)
EVERY = 4  # of the stable stretches, one of so many
SPLITS = 12
SESSIONS = ROOT / "benchmarks" / "data" / "gate-sessions.jsonl.gz"
"""Of campaign.py, at commit 6d760d1: those that there were when the verdicts were frozen."""

Comparison = tuple[str, str, Sequence[Run], Sequence[Run]]
"""The set, the tier, and both sides."""


def comparisons(folder: Path) -> Iterator[Comparison]:
    """All of them, in an order that never changes."""
    yield from of_histories(folder)
    yield from of_pools(folder)
    yield from of_sessions(SESSIONS)


def of_histories(folder: Path) -> Iterator[Comparison]:
    stable = 0
    for one in stretches(folder):
        stable += one.size == 0
        if one.size == 0 and stable % EVERY:
            continue
        half = "seen" if one.seen else "unseen"
        sides = as_runs("a", one.baseline), as_runs("b", one.candidate)
        for tier, margin in STEP_LIMIT.items():
            what = "stable" if one.size == 0 else size_in_margins(float(np.expm1(one.size)) / margin)
            if what:
                yield f"histories {what}, {half}", tier, *sides


def size_in_margins(margins: float) -> str:
    return "2 margins" if margins >= 2 else "1.5 margins" if margins >= 1.5 else "1 margin" if margins >= 1 else ""


def of_pools(folder: Path) -> Iterator[Comparison]:
    for name, runs in folder_pools(folder).items():
        rng = np.random.default_rng(23)
        for _ in range(SPLITS):
            part = rng.permutation(len(runs))
            k, m = (5, 3) if len(runs) >= 10 else (4, 3)
            left, right = [runs[i] for i in part[:k]], [runs[i] for i in part[k : k + m]]
            source = name.split(":")[0]
            for tier, margin in STEP_LIMIT.items():
                yield f"{source} unchanged", tier, left, right
                yield f"{source} 1.5 margins", tier, left, [slower(run, 1 + 1.5 * margin) for run in right]


def of_sessions(packed: Path) -> Iterator[Comparison]:
    """Every session of unchanged code against every other of its algorithm."""
    for algo, made in unchanged_sessions(packed).items():
        for left, right in permutations(made, 2):
            yield f"sessions with fresh seeds, {algo}", "smoke", left, right


def unchanged_sessions(packed: Path) -> dict[str, list[list[Run]]]:
    """By algorithm, the runs of each session of unchanged code."""
    sessions = defaultdict(list)
    with gzip.open(packed, "rt") as file:
        for number, line in enumerate(file):
            record = json.loads(line)
            if record["kind"] in ("baseline", "unchanged"):
                sessions[record["algo"]].append(
                    [packed_run(f"{number} {i}", run) for i, run in enumerate(record["runs"])]
                )
    return sessions


def packed_run(name: str, plain: dict[str, Any]) -> Run:
    """A run as benchmarks/campaign.py packed it."""
    held = {
        key: Series(
            name=key, steps=np.array(steps), values=np.array([np.nan if x is None else x for x in values], float)
        )
        for key, (steps, values) in plain["series"].items()
    }
    kept = ("seed", "completed", "failure", "learned", "invariants", "nan_steps", "inf_steps", "last_step")
    return Run(
        run_id=name,
        series=held,
        critical_held=plain["critical_held"],
        workload=plain["workload"],
        hardware=plain["hardware"],
        **{key: plain[key] for key in kept},
    )


def letters(folder: Path) -> dict[str, str]:
    """Set and tier → one letter per verdict: P(ASS), B(LOCK), I(NCONCLUSIVE)."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, tier, left, right in comparisons(folder):
        found[f"{name}, {tier}"].append(str(verdict(left, right, policy_for(tier)).outcome)[0])
    return {name: "".join(each) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--beside", type=Path)
    asked = parser.parse_args()
    found = letters(asked.folder)
    before = json.loads(gzip.decompress(asked.beside.read_bytes())) if asked.beside else {}
    print("| set | verdicts | BLOCK % | PASS % | changed |\n|---|---|---|---|---|")
    for name, now in found.items():
        changed = Counter(f"{a}>{b}" for a, b in zip(before.get(name, ""), now, strict=False) if a != b)
        shares = (f"{100 * now.count(letter) / len(now):.1f}" for letter in "BP")
        words = ", ".join(f"{move}: {count}" for move, count in sorted(changed.items()))
        print(f"| {name} | {len(now)} | {' | '.join(shares)} | {words} |")
    if asked.write:
        asked.write.write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))


if __name__ == "__main__":
    main()
