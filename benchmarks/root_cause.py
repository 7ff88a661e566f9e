"""Is the cause that a verdict names the right one? Every fault x algorithm x strength beside a champion's runs.

    python benchmarks/root_cause.py FOLDER [--algos sft …] [--faults NAME …] [--scales 0.5 1 2] [--seed N]
                                           [--unchanged N] [--runs N] [--busy] [--minutes N]
    python benchmarks/root_cause.py --campaign    # the campaign's whole sessions: each fault, and unchanged code

Each candidate is a session of `--runs` runs. The rules are not told its fault: they see the numbers it recorded. Top-1
and top-3 count those that the gate sees (BLOCK, or INCONCLUSIVE with a cause). Unchanged sessions should name none, nor
should any two of them, the champion's among them, whatever their verdict. What FOLDER holds is not trained again;
`--minutes 0` trains nothing. `--busy`: a busy loop holds a core beside every second session. One JSON line at the end.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, permutations
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from sessions import busy_loop, runs_of, train  # noqa: E402  # the path is set above

from canary_mlflow.gates import Run, Version, judge  # noqa: E402
from canary_mlflow.gates.model.records import Series  # noqa: E402
from canary_mlflow.gates.root_causes import root_causes  # noqa: E402
from canary_mlflow.policies import load_policy  # noqa: E402

ALGOS = ("sft", "dpo", "ppo", "kto", "reward", "grpo", "rloo")
RATE = ("rate.learning",)
RIGHT: dict[str, tuple[str, ...]] = {
    "dpo_unstable_lr": RATE,
    "sft_unstable": RATE,
    "ppo_unstable": (*RATE, "rate.passes", "rate.kl"),
    "ppo_unstable_kl": (*RATE, "rate.passes", "rate.kl"),
    "lr_high": RATE,
    "no_learning": RATE,
    "kl_zero": ("rate.kl", "rate.passes", "policy.unheld"),
    "entropy_collapse": ("policy.collapses",),
    "value_divergence": ("critic.runs-away",),
    "reward_hack": ("start.reward", "reward.parts"),
    "flipped_labels": ("data.contradicts", "data.exchanged"),
    "wrong_reference": ("start.reference",),
    "truncated_prompts": ("data.tokens",),
    "temperature_ignored": ("start.reference",),  # the first step's ratio is not 1
    "flat_rewards": ("numbers.frozen",),
    "nan_batch": ("numbers.loss",),
    "inf_grad": ("numbers.gradient",),
    "memory_leak": ("memory.grows",),
    "memory_ballast": ("memory.at-once",),
    "slow_loader": ("time.data_wait", "time.between", "time.time_generate"),
    "slow_step_from_n": ("time.sets-in",),
    "stalled_step": ("time.sets-in",),
    "gc_storm": ("time.between", "time.time_optimizer", "time.time_update"),
}
"""What a fault is by its design, whatever it is called; several where it changes several things."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One candidate. `fault`: '' for unchanged code."""

    algo: str
    fault: str
    scale: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.algo}-{self.fault or 'unchanged'}-{self.scale:g}-{self.seed}"


def cells(algos: list[str], only: list[str], scales: list[float], unchanged: int, seed: int) -> Iterator[Cell]:
    """First the unchanged candidates, then the faults (all if none is named) at each scale of their strength; faults
    without degrees once."""
    for algo in algos:
        yield from (Cell(algo=algo, fault="", scale=1.0, seed=10 * seed + at) for at in range(unchanged))
    for algo in algos:
        for name, body in faults().items():
            if algo in body.get("signals", {}) and name in (only or faults()):
                own = scales if body.get("strength") is not None else scales[:1]
                yield from (Cell(algo=algo, fault=name, scale=scale, seed=seed) for scale in own)


def faults() -> dict[str, dict[str, Any]]:
    """The faults by name."""
    found = [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "conf/fault").glob("[!_]*.yaml"))]
    return {one["name"]: one for one in found}


def runs(place: Path, words: list[str], busy: bool = False) -> list[Run]:
    """The runs of the session in this folder, trained if it has none."""
    if not (place / "done").exists():
        with busy_loop(busy):
            train(place, words)
        (place / "done").touch()
    return [run for _, run in runs_of(f"sqlite:///{place}/mlflow.db")]


def words_of(cell: Cell, count: int) -> list[str]:
    """The command line of a candidate's session of so many runs."""
    body = faults().get(cell.fault, {})
    strength = body.get("strength")
    most = 1.0 if cell.fault == "flipped_labels" else float("inf")
    own = [f"fault={cell.fault}"] if cell.fault else []
    if strength is not None and cell.scale != 1.0:
        own.append(f"fault.strength={min(most, strength * cell.scale)}")
    return [f"algo={cell.algo}", "hardware=cpu", f"repeats={count}", "register=false", f"seed={cell.seed}", *own]


def score(cell: Cell, baseline: list[Run], candidate: list[Run]) -> dict[str, Any]:
    """What the gate says, and whether the cause is right."""
    sides = [Version(model="m", version=str(at), runs=tuple(side)) for at, side in enumerate((baseline, candidate))]
    verdict = judge(load_policy("smoke"), *sides)
    return scored(cell, str(verdict.outcome), [one.rule for one in verdict.causes])


def scored(cell: Cell, outcome: str, named: list[str]) -> dict[str, Any]:
    """Whether the gate sees the fault, and whether the named causes are right."""
    right = RIGHT.get(cell.fault, ())
    return {
        "name": cell.name,
        "outcome": outcome,
        "seen": outcome == "BLOCK" or (outcome == "INCONCLUSIVE" and bool(named)),
        "named": named,
        "top1": named[:1] != [] and named[0] in right,
        "top3": any(one in right for one in named[:3]),
    }


def campaign() -> Iterator[dict[str, Any]]:
    """The campaign's sessions. Their verdicts hold the causes; the runs hold only what the other rules read."""
    for file in ("campaign.jsonl.gz", "campaign-others.jsonl.gz"):
        with gzip.open(ROOT / "benchmarks" / "data" / file, "rt") as lines:
            yield from (record | {"file": file} for record in map(json.loads, lines))


def calm_pairs(sessions: list[dict[str, Any]]) -> dict[str, Any]:
    """In how many pairs of unchanged sessions of one algorithm and commit a cause is named."""
    sides: dict[tuple[str, str], list[list[Run]]] = {}
    for at, one in enumerate(sessions):
        if one["kind"] in ("baseline", "unchanged"):
            sides.setdefault((one["algo"], one["file"]), []).append([kept(at, run) for run in one["runs"]])
    return causes_of_pairs(list(sides.values()))


def causes_of_pairs(alike: list[list[list[Run]]]) -> dict[str, Any]:
    """In how many pairs of sessions that did the same a cause is named, whatever their verdict."""
    pairs = [pair for each in alike for pair in permutations(each, 2)]
    named = [[one.rule for one in root_causes(*pair)] for pair in pairs]
    return {"unchanged_pairs": len(pairs), "named": sum(map(bool, named)), "rules": sorted({*chain(*named)})}


def whole_sessions(sessions: list[dict[str, Any]]) -> dict[str, int]:
    """The causes that sessions were given when they were made: those with a fault, and those of unchanged code."""
    calm = [one["verdict"]["causes"] for one in sessions if one["kind"] == "unchanged"]
    cells = [
        (Cell(algo=one["algo"], fault=one["kind"], scale=1.0, seed=one["seed"]), one["verdict"])
        for one in sessions
        if one["kind"] in faults()
    ]
    found = counts([scored(cell, said["outcome"], said["causes"]) for cell, said in cells])
    return found | {"unchanged": len(calm), "unchanged_named": sum(map(bool, calm))}


def counts(found: list[dict[str, Any]]) -> dict[str, int]:
    """How many faults the gate saw, and how many of those causes are right."""
    seen = [one for one in found if one["seen"]]
    right = {rank: sum(one[rank] for one in seen) for rank in ("top1", "top3")}
    return {"faults": len(found), "seen": len(seen), **right}


def kept(at: int, plain: dict[str, Any]) -> Run:
    """A run of the campaign's session `at`."""
    series = {
        name: Series(name=name, steps=np.array(steps), values=np.array(values, float))
        for name, (steps, values) in plain["series"].items()
    }
    return Run(run_id=f"{at}-{plain['seed']}", **{**plain, "series": series})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--campaign", action="store_true", help="No training: the campaign's sessions.")
    parser.add_argument("--faults", nargs="+", default=[], choices=sorted(faults()), metavar="NAME")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--algos", nargs="+", default=list(ALGOS), choices=ALGOS)
    parser.add_argument("--scales", nargs="+", type=float, default=[0.5, 1.0, 2.0])
    parser.add_argument("--unchanged", type=int, default=20)
    parser.add_argument("--runs", type=int, default=1, help="Runs of a candidate's session.")
    parser.add_argument("--busy", action="store_true", help="A busy loop beside every second session.")
    parser.add_argument("--minutes", type=float, default=1e9)
    given = parser.parse_args()
    if given.campaign or given.folder is None:
        sessions = list(campaign())
        print(json.dumps({**whole_sessions(sessions), **calm_pairs(sessions)}))
        return
    last, found = time.monotonic() + 60 * given.minutes, []
    unchanged: dict[str, list[list[Run]]] = {}
    for at, cell in enumerate(cells(given.algos, given.faults, given.scales, given.unchanged, given.seed)):
        place = given.folder.absolute() / cell.name
        if time.monotonic() > last and not (place / "done").exists():
            continue
        champion = runs(given.folder.absolute() / f"{cell.algo}-champion", [f"algo={cell.algo}", "hardware=cpu"])
        candidate = runs(place, words_of(cell, given.runs), given.busy and at % 2 == 1)
        found.append((cell, score(cell, champion, candidate)))
        if not cell.fault:
            unchanged.setdefault(cell.algo, [champion]).append(candidate)
        print(json.dumps(found[-1][1]), flush=True)
    calm = [one for cell, one in found if not cell.fault]
    scales = {
        f"{scale:g}": [one for cell, one in found if cell.fault and cell.scale == scale] for scale in given.scales
    }
    named = sum(bool(one["named"]) for one in calm)
    print(json.dumps({
        **counts([one for cell, one in found if cell.fault]), "unchanged": len(calm), "unchanged_named": named,
        **causes_of_pairs(list(unchanged.values())),
        "scales": {scale: counts(cells) for scale, cells in scales.items()},
    }))  # fmt: skip


if __name__ == "__main__":
    main()
