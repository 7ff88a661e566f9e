"""What unchanged runs differ by, for people and as JSON values: spreads, the tiers that resolve them, how often the
policy errs on these runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from canary_mlflow.policies import load_policy, policy_names
from gates import Policy, Run
from gates.calibration import MetricSpread, Resplits, resolvable
from gates.policy import Scale, Worse
from gates.wording import figure

RESOLVING = (5, 3)
"""The runs a side, stored and candidate, by which a tier is said to resolve a spread."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What a set of unchanged runs says by one policy; `when`: the facts that the spreads hold for."""

    policy: Policy
    when: Mapping[str, str]
    spreads: Sequence[MetricSpread]
    resplits: Resplits | None
    notes: Sequence[str]


def notes_on(groups: Sequence[Sequence[Run]], spreads: Sequence[MetricSpread]) -> list[str]:
    """What makes these runs a poor standard: one far off its group, and seeds that a group has more than once."""
    return [*(f"{each.rule.name}: {problem}" for each in spreads for problem in each.odd), *_seeds(groups)]


def _seeds(groups: Sequence[Sequence[Run]]) -> list[str]:
    seeds = [[run.seed for run in group if run.seed is not None] for group in groups]
    repeated = sorted({seed for group in seeds for seed in group if group.count(seed) > 1})
    if not repeated:
        return []
    named = f"seed {repeated[0]}" if len(repeated) == 1 else f"seeds {', '.join(map(str, repeated[:5]))}"
    return [
        f"several runs of a group have {named}: they differ by less than runs of different seeds do, and a spread from "
        "them lets too much pass elsewhere; calibrate with runs of different seeds"
    ]


def lines(found: Calibration) -> Iterator[str]:
    """The table for people. Log scales as percent, others in the metric's unit."""
    facts = ", ".join(f"{key} {value}" for key, value in found.when.items()) or "no facts recorded"
    yield f"Spread (standard deviation) between unchanged runs ({facts})"
    yield ""
    yield f"  {'metric':20s} {'runs':>4s} {'spread':>10s} {'shipped':>10s} {'margin':>10s}  resolved by"
    for each in found.spreads:
        spread, shipped, margin = _cell(each, each.sd), _cell(each, each.rule.prior), _cell(each, _margin(each))
        tiers = ", ".join(resolved_in(each)) or "no tier: too noisy"
        yield f"  {each.rule.name:20s} {each.runs:4d} {spread:>10s} {shipped:>10s} {margin:>10s}  {tiers}"
    yield ""
    sides = "{} runs against {}".format(*RESOLVING)
    yield f"shipped: what the policy expects. resolved by: the tiers in which {sides} tell half a margin from nothing"
    yield "with 95 % confidence at this spread."
    yield from _resplit(found.policy, found.resplits)
    yield from (f"Note: {note}." for note in found.notes)


def as_dict(found: Calibration) -> dict[str, Any]:
    """The same as JSON values; spreads and margins on the scale of the margin (log or unit)."""
    metrics = {
        each.rule.name: {
            "runs": each.runs,
            "groups": each.groups,
            "scale": (Scale.LOG if each.relative else Scale.IDENTITY).value,
            "spread": each.sd,
            "shipped": each.rule.prior,
            "margin": each.margin,
            "resolved_by": resolved_in(each),
            "prior": None if each.prior is None else vars(each.prior),
        }
        for each in found.spreads
    }
    return {
        "policy": found.policy.name,
        "when": dict(found.when),
        "metrics": metrics,
        "resplits": None if found.resplits is None else vars(found.resplits),
        "notes": list(found.notes),
    }


def resolved_in(each: MetricSpread) -> list[str]:
    """The shipped tiers whose margin this spread can resolve, the widest margin first."""
    rules = {tier: next((r for r in load_policy(tier).rules if r.name == each.rule.name), None) for tier in _tiers()}
    return [tier for tier, rule in rules.items() if rule is not None and each.sd <= resolvable(rule, *RESOLVING)]


def _tiers() -> list[str]:
    return sorted(policy_names(), key=lambda tier: -load_policy(tier).rules[0].margin)


def _margin(each: MetricSpread) -> float:
    """The margin as a fraction where it is a logarithm: that of 5 % is 0.0488."""
    if not each.relative:
        return each.margin
    return -math.expm1(-each.margin) if each.rule.worse is Worse.LOWER else math.expm1(each.margin)


def _cell(each: MetricSpread, value: float) -> str:
    return f"{figure(100 * value)} %" if each.relative else f"{figure(value)} {each.rule.info.unit}".rstrip()


def _resplit(policy: Policy, splits: Resplits | None) -> Iterator[str]:
    if splits is None:
        yield "Too few runs to judge them against each other; four are needed."
        return
    yield (
        f"{splits.splits} random splits of one group, {splits.k} against {splits.m} runs, policy {policy.name}: "
        f"{splits.block:.1%} BLOCK, {splits.passed:.1%} PASS. (The splits share runs: no independent trials.)"
    )
