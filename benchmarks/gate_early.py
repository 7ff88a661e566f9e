"""Looks at cost, memory and quality before a session's end, on recorded runs: false BLOCK, power, and steps saved.

A champion and a candidate have five runs each: neighbours on the campaign's tape of unchanged runs (campaign.py), so
what the machine did meanwhile is real, and harm is put into what the candidate recorded. `between runs` is what the
product does: `certain` after each run, from the second on. `within runs` looks at a third and two thirds of each run
from the second on, both sides cut there, with the same share of the level in equal parts; `no look`: one judgement of
all five at the whole level. Steps saved are those of the session that are not made. Hard checks are left out. The
faults are the campaign's own sessions, of three runs each, beside each champion of their row.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from campaign_tables import read
from root_cause import kept

from canary_mlflow.gates import Outcome, Run, Series, Version, judge
from canary_mlflow.gates.model.policy import EARLY, Policy
from canary_mlflow.gates.top_up import certain
from canary_mlflow.policies import load_policy

ROOT = Path(__file__).resolve().parent
FILES = ("campaign", "campaign-others")
RUNS, LEAST = 5, 45
PARTS = (1 / 3, 2 / 3)
COSTS = ("step_time", "step_cpu_time", "step_cost", "iteration_time", "iteration_cpu_time", "iteration_cost")
HARMS: Mapping[str, Mapping[str, float]] = {
    "unchanged": {},
    "cost, the margin": {"cost": 1.0},
    "cost, 1.5 margins": {"cost": 1.5},
    "cost, 2 margins": {"cost": 2.0},
    "cost, 4 margins": {"cost": 4.0},
    "memory, 1.5 margins": {"memory": 1.5},
    "evaluation loss, 2 margins": {"loss": 2.0},
}
"""In margins of the tier's step cost, peak memory and evaluation loss."""
FAULTS = ("gc_storm", "memory_ballast", "memory_leak", "slow_loader", "slow_step_from_n")
DESIGNS = ("no look", "between runs", "within runs")
Sides = tuple[Sequence[Run], Sequence[Run]]


@dataclass(frozen=True, kw_only=True)
class Session:
    """Recorded runs of a session. `row`: file, algorithm and load."""

    row: tuple[str, str, str]
    kind: str
    runs: tuple[Run, ...]


@cache
def sessions() -> tuple[Session, ...]:
    """All of the campaign, in the order in which they were made."""
    return tuple(
        Session(
            row=(name, one["algo"], one["load"]), kind=one["kind"], runs=tuple(kept(at, run) for run in one["runs"])
        )
        for name in FILES
        for at, one in enumerate(read(ROOT / f"{name}.jsonl.gz"))
    )


def tapes() -> dict[tuple[str, str, str], list[Run]]:
    """Unchanged runs that finished, by row."""
    found = defaultdict(list)
    for one in sessions():
        if one.kind in ("baseline", "unchanged"):
            found[one.row] += [run for run in one.runs if run.completed]
    return {row: runs for row, runs in found.items() if len(runs) >= LEAST}


def policy_of(tier: str, steps: int) -> Policy:
    """The tier's policy for runs of so few steps, without hard checks."""
    policy = load_policy(tier)
    warmup, least = max(3, steps // 25), max(5, steps // 10)
    hard = replace(policy.hard, **dict.fromkeys(vars(policy.hard), False))
    return replace(policy, warmup_steps=warmup, min_steps=least, hard=hard, fail_fast=True)


def harmed(run: Run, policy: Policy, margins: Mapping[str, float]) -> Run:
    """The run with so many margins of harm."""
    of = {rule.name: rule.margin for rule in policy.rules}
    cost, memory, loss = (
        1 + margins.get(what, 0) * of[name]
        for what, name in (("cost", "step_cost"), ("memory", "peak_memory"), ("loss", "eval_loss"))
    )
    factors = {**dict.fromkeys(COSTS, cost), "peak_memory": memory, "eval_loss": loss}
    series = {key: replace(one, values=one.values * factors.get(key, 1.0)) for key, one in run.series.items()}
    return replace(run, series=series)


def cut(run: Run, share: float) -> Run:
    """Its first steps."""
    last = int(run.last_step * share)
    kept_rows = {key: one.steps <= last for key, one in run.series.items()}
    series = {
        key: Series(name=key, steps=one.steps[kept_rows[key]], values=one.values[kept_rows[key]])
        for key, one in run.series.items()
        if kept_rows[key].any()
    }
    return replace(run, series=series, last_step=last)


def version(runs: Sequence[Run]) -> Version:
    return Version(model="", version=None, runs=tuple(runs))


def followed(policy: Policy, sides: Sides, design: str) -> tuple[bool, float]:
    """Whether a session is blocked, and the share of its steps that are then not made."""
    champion, candidate = version(sides[0]), sides[1]
    planned = len(candidate)
    if design == "between runs":
        for made in range(2, planned):
            if certain(policy, champion, version(candidate[:made]), planned - made):
                return True, 1 - made / planned
    if design == "within runs":
        looks = [(made, part) for made in range(1, planned) for part in PARTS]
        whole = replace(policy, fail_fast=False)
        for made, part in looks:
            before, now = ([cut(run, part) for run in side] for side in (sides[0], candidate[: made + 1]))
            if blocks(whole.spending(EARLY / len(looks)), version(before), now):
                return True, 1 - (made + part) / planned
    return blocks(replace(policy, fail_fast=design != "no look"), champion, candidate), 0.0


def blocks(policy: Policy, champion: Version, candidate: Sequence[Run]) -> bool:
    return judge(policy, champion, version(candidate)).outcome is Outcome.BLOCK


def drawn(tier: str, margins: Mapping[str, float], repeats: int, rng: random.Random) -> Iterator[tuple[Policy, Sides]]:
    """So many pairs of sides of each row."""
    for runs in tapes().values():
        policy = policy_of(tier, runs[0].last_step)
        for _ in range(repeats):
            one, other = (at * RUNS for at in rng.sample(range(len(runs) // RUNS), 2))
            candidate = [harmed(run, policy, margins) for run in runs[other : other + RUNS]]
            yield policy, (runs[one : one + RUNS], candidate)


def recorded(tier: str, fault: str) -> Iterator[tuple[Policy, Sides]]:
    """The campaign's sessions with a fault, beside each champion of their row."""
    for one in sessions():
        if one.kind == fault and len(one.runs) > 2:
            champions = [each for each in sessions() if each.row == one.row and each.kind == "baseline"]
            for each in champions:
                yield policy_of(tier, one.runs[0].last_step), (each.runs, one.runs)


def row_of(name: str, cases: Iterator[tuple[Policy, Sides]]) -> dict[str, Any]:
    """A line of the table, printed."""
    found: dict[str, list[tuple[bool, float]]] = {design: [] for design in DESIGNS}
    for policy, sides in cases:
        for design, told in found.items():
            told.append(followed(policy, sides, design))
    count = len(found[DESIGNS[0]])
    blocked = {design: 100 * float(np.mean([block for block, _ in told])) for design, told in found.items()}
    saved = {design: 100 * float(np.mean([share for _, share in told])) for design, told in found.items()}
    cells = [f"{blocked[design]:.1f}" for design in DESIGNS] + [f"{saved[design]:.0f}" for design in DESIGNS[1:]]
    print(f"| {name} | {count} | {' | '.join(cells)} |", flush=True)
    return {"sessions": count, "blocked": blocked, "saved": saved}


def show(tiers: Sequence[str], repeats: int, seed: int) -> None:
    """The table of each tier; unchanged sessions three times as often."""
    result: dict[str, Any] = {}
    for tier in tiers:
        print(
            f"| {tier} | sessions | BLOCK, %: no look | between runs | within runs | steps saved, %: between | within |"
        )
        print("|---" * 7 + "|")
        for name, margins in HARMS.items():
            cases = drawn(tier, margins, repeats if margins else 3 * repeats, random.Random(f"{seed} {tier} {name}"))
            result[f"{tier} {name}"] = row_of(name, cases)
        for fault in FAULTS:
            result[f"{tier} {fault}"] = row_of(f"`{fault}`, three runs", recorded(tier, fault))
    print(json.dumps({"benchmark": "early looks", "repeats": repeats, **result}))
