"""What the gate makes of the runs that on_card.py has recorded."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from card_desk import Desk
from card_measures import SEED
from on_card import Record

from canary_mlflow.gates import Policy, Run, Verdict, Version, judge
from canary_mlflow.policies import load_policy

BROKEN = ("kl_zero", "lr_high", "nan_batch")


def policy_of(tier: str, steps: int) -> Policy:
    """The tier's policy for runs of so few steps: a quarter of them is warm-up."""
    return replace(load_policy(tier), priors=(), warmup_steps=steps // 4, min_steps=steps // 2)


def side(runs: Sequence[Run], *, beside: bool = False) -> Version:
    return Version(model="on-card", version=None, runs=tuple(runs), beside=beside)


def splits(desk: Desk, names: Sequence[str], tier: str) -> Record:
    runs, draw = desk.runs("unchanged", *names), random.Random(SEED)
    sides = []
    for _ in range(desk.size.splits):
        draw.shuffle(runs)
        half = len(runs) // 2
        sides.append((side(runs[:half]), side(runs[half:])))
    return counted(judge(policy_of(tier, desk.size.steps), *both) for both in sides)


def slower(desk: Desk, algo: str, tier: str) -> Record:
    """Of each share, splits of four pairs, drawn from the six."""
    numbers, draw, found = range(desk.size.runs), random.Random(SEED), {}
    for share in desk.size.slower:
        verdicts = []
        for _ in range(desk.size.splits):
            drawn = draw.sample(numbers, max(2, 2 * len(numbers) // 3))
            before, after = (desk.runs("slower", *(f"{algo}-{one}-{at}" for at in drawn)) for one in (0.0, share))
            sides = side(before, beside=True), side(after)
            verdicts.append(judge(policy_of(tier, desk.size.steps), *sides))
        found[str(share)] = counted(verdicts)
    said = ", ".join(f"+{float(share):.0%} {one['said']}" for share, one in found.items())
    return {"shares": found, "said": said}


def policies(desk: Desk, algo: str) -> Record:
    ours, unchanged, broken = desk.size.policy_runs
    champion = side(desk.runs("policies", *(f"{algo}-champion-{at}" for at in range(ours))))
    candidates = {f"unchanged {at + 1}": ("unchanged", range(at * unchanged, (at + 1) * unchanged)) for at in range(2)}
    candidates |= {fault: (fault, range(broken)) for fault in BROKEN}
    found = {}
    for name, (kind, numbers) in candidates.items():
        candidate = side(desk.runs("policies", *(f"{algo}-{kind}-{at}" for at in numbers)))
        verdict = judge(policy_of("smoke", desk.size.policy_steps), champion, candidate)
        found[name] = {"outcome": str(verdict.outcome), "reason": verdict.reason}
    return {"sessions": found, "said": ", ".join(f"{name} {one['outcome']}" for name, one in found.items())}


def same(desk: Desk) -> Record:
    before, after = desk.runs("card", "deterministic-0", "deterministic-1")
    same = before.series["loss"].same_values(after.series["loss"])
    return {"same": same, "said": "the same losses twice" if same else "other losses"}


def heated(desk: Desk) -> Record:
    """Whether the gate calls the clock unusable where the card was busy with something else."""
    cool, hot = (desk.runs("card", *(f"{kind}-{at}" for at in range(desk.size.runs))) for kind in ("cool", "hot"))
    verdict = judge(policy_of("smoke", desk.size.steps), side(cool), side(hot))
    checks = {
        check.metric: str(check.outcome) for check in verdict.checks if check.metric in ("step_time", "step_cost")
    }
    return {"outcome": str(verdict.outcome), "reason": verdict.reason, "checks": checks, "said": verdict.reason[:100]}


def counted(verdicts: Iterator[Verdict] | Sequence[Verdict]) -> Record:
    given = list(verdicts)
    outcomes = Counter(str(verdict.outcome) for verdict in given)
    reasons = Counter(verdict.reason for verdict in given if str(verdict.outcome) != "PASS")
    said = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    return {"outcomes": dict(outcomes), "reasons": dict(reasons.most_common(5)), "said": said}
