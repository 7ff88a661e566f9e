"""How much unchanged runs differ, for people and as JSON values: spreads, and the tiers that resolve them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from canary_mlflow.gates import Policy, Run
from canary_mlflow.gates.calibration import UPPER, MetricSpread, resolvable, uncertainty
from canary_mlflow.gates.model.rules import MetricRule, Scale
from canary_mlflow.gates.model.wording import counted, figure, quantity
from canary_mlflow.policies import load_policy, option_names

RESOLVING = (5, 3)
"""The runs a side, stored and candidate, by which a tier is said to resolve a spread."""
_LEVEL = f"{100 * UPPER:.0f} %"
VAGUE = 3.0
"""A spread whose upper bound is more times as large gets a note: that of two or three runs."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What a set of unchanged runs says under one policy. `when`: the facts for which the spreads hold.
    `margins`: those of each tier's rules, on the scale of the spreads."""

    policy: Policy
    when: Mapping[str, str]
    spreads: Sequence[MetricSpread]
    margins: Mapping[str, Mapping[str, float]]
    notes: Sequence[str]


def notes_on(groups: Sequence[Sequence[Run]], spreads: Sequence[MetricSpread]) -> list[str]:
    """Why these runs are a poor standard: too few, one far from its group, seeds that a group has more than once."""
    odd = [f"{each.rule.name}: {problem}" for each in spreads for problem in each.odd]
    return [*_few(spreads), *odd, *_seeds(groups)]


def unknown_place(when: Mapping[str, str]) -> list[str]:
    """A warning if a stored spread would be used for any run."""
    if when:
        return []
    return ["the runs name neither hardware nor algorithm: stored, their spread is taken for any run's in that folder"]


def _few(spreads: Sequence[MetricSpread]) -> list[str]:
    least = min(spreads, key=lambda each: each.runs - each.groups, default=None)
    times = uncertainty(least.runs - least.groups) if least else 0.0
    if least is None or times <= VAGUE:
        return []
    return [
        f"{counted(least.runs, 'run')} leave a spread uncertain: the true one may be {times:.1f} times "
        f"as large ({_LEVEL} upper bound), with five runs of one session {uncertainty(4):.1f} times"
    ]


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
    yield f"  {'metric':20s} {'runs':>4s} {'spread':>10s} {'up to':>10s} {'shipped':>10s} {'margin':>10s}  resolved by"
    for each in found.spreads:
        values = (each.sd, each.upper, each.shipped, _margin(each))
        words = ["-" if value is None else amount(value, each.rule, each.relative) for value in values]
        cells = " ".join(f"{word:>10s}" for word in words)
        yield f"  {each.rule.name:20s} {each.runs:4d} {cells}  {_tiers_of(found, each)}"
    yield ""
    sides = "{} runs against {}".format(*RESOLVING)
    yield f"up to: the {_LEVEL} upper confidence bound of the spread (equal runs have none). shipped: the policy's."
    yield f"resolved by: the tiers in which {sides} tell half a margin from nothing with 95 % confidence, even"
    yield "at that bound; perhaps: only at the measured spread, so that more runs must confirm it."
    yield from (f"Note: {note}." for note in found.notes)


def as_dict(found: Calibration) -> dict[str, Any]:
    """The table as JSON values; spreads and margins on the scale of the margin (log or unit)."""
    metrics = {
        each.rule.name: {
            "runs": each.runs,
            "groups": each.groups,
            "scale": (Scale.LOG if each.relative else Scale.IDENTITY).value,
            "spread": each.sd,
            "spread_upper": each.upper,
            "shipped": each.shipped,
            "margin": each.margin,
            "resolved_by": resolved_in(found, each),
            "perhaps_resolved_by": perhaps_in(found, each),
            "prior": None if each.prior is None else vars(each.prior),
        }
        for each in found.spreads
    }
    return {
        "policy": found.policy.name,
        "when": dict(found.when),
        "metrics": metrics,
        "notes": list(found.notes),
    }


def resolved_in(found: Calibration, each: MetricSpread) -> list[str]:
    """The shipped tiers whose margin can be resolved even at the spread's upper bound, the widest margin first."""
    if each.upper is None:  # equal runs: two may be so by chance
        return _resolved_at(found, each, each.sd) if each.runs - each.groups >= 2 else []
    return _resolved_at(found, each, each.upper)


def perhaps_in(found: Calibration, each: MetricSpread) -> list[str]:
    """The tiers whose margin can be resolved at the measured spread, but not at its upper bound."""
    sure = resolved_in(found, each)
    return [tier for tier in _resolved_at(found, each, each.sd) if tier not in sure]


def _resolved_at(found: Calibration, each: MetricSpread, spread: float) -> list[str]:
    limits = {tier: margins.get(each.rule.name) for tier, margins in found.margins.items()}
    return [tier for tier, margin in limits.items() if margin is not None and spread <= resolvable(margin, *RESOLVING)]


def _tiers_of(found: Calibration, each: MetricSpread) -> str:
    sure, perhaps = ", ".join(resolved_in(found, each)), ", ".join(perhaps_in(found, each))
    return "; ".join(part for part in (sure, perhaps and f"perhaps {perhaps}") if part) or "no tier: too noisy"


def tier_names() -> list[str]:
    """The shipped tiers that judge metrics, the widest margin first."""
    rules = {tier: load_policy(tier).rules for tier in option_names("tier")}
    return sorted((tier for tier in rules if rules[tier]), key=lambda tier: -rules[tier][0].margin)


def _margin(each: MetricSpread) -> float:
    """The margin; a logarithm as a fraction: that of 5 % is 0.0488."""
    return abs(each.rule.change(each.margin)) if each.relative else each.margin


def amount(value: float, rule: MetricRule, relative: bool) -> str:
    """A spread or a margin: in percent if it is relative, else in the unit that verdicts use."""
    return f"{figure(100 * value)} %" if relative else quantity(value, rule.unit)
