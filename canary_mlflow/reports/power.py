"""The chances of BLOCK and PASS, for people and as JSON values, with the spread that they rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from canary_mlflow.reports.calibration import amount
from gates import MetricRule, Policy
from gates.model.priors import Prior
from gates.model.rules import Scale
from gates.model.summaries import SUMMARIES
from gates.model.wording import counted
from gates.stats.power import Chances, level

SOURCES = {
    "shipped": "shipped with the policy",
    "calibrated": "calibrated here",
    "learnt": "learnt from several sessions",
    "given": "given with --spread",
}


@dataclass(frozen=True, kw_only=True)
class KnownSpread:
    """The spread that the chances are for; its kind is a key of SOURCES. `entry`: the name it is stored under, '' if it
    is not stored. `notes`: what a user should know about stored spreads."""

    prior: Prior
    entry: str = ""
    notes: tuple[str, ...] = ()


EFFECTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
"""True harm, in margins."""


def lines(table: Sequence[Chances], policy: Policy, rule: MetricRule, known: KnownSpread) -> Iterator[str]:
    """The table for people, after the source of its spread and a note if the rule does not decide."""
    stored = f", stored as {known.entry!r}" if known.entry else ""
    yield f"{title(policy, rule, known)}; chance of BLOCK / PASS in %"
    yield f"spread: standard deviation between equal runs{stored}; --spread takes another ({_meaning(rule)})"
    yield from (f"Note: {note}." for note in known.notes)
    if rule.headroom is not None:
        yield f"Where the device has little left, the margin is smaller than here: {100 * rule.headroom:g} % of that."
    others = sum(each.blocks and each.name != rule.name for each in policy.rules)
    if rule.blocks and others:
        part, whole = (f"{100 * share:.2g} %" for share in (level(policy, rule), policy.alpha_block))
        yield (
            f"BLOCK at the {part} level: this rule's share of {whole}, which it divides with "
            f"{counted(others, 'other rule')} that may block; larger where runs lack some of their metrics"
        )
    if rule.role == "advisory":
        yield f"{rule.name} is advisory in this policy: it never blocks"
    if rule.role == "ignore":
        yield f"{rule.name} is ignored in this policy: it never blocks and never passes"
    yield f"  {'runs (k+m)':>10s}" + "".join(f"{effect:>12g}x" for effect in EFFECTS) + "   (true harm, in margins)"
    for each in table:
        harms = [effect * rule.harm_margin for effect in EFFECTS]
        cells = "".join(f"{f'{100 * each.block(harm):.0f} / {100 * each.passed(harm):.0f}':>13s}" for harm in harms)
        yield f"  {each.baseline_runs:>8d}+{each.candidate_runs}{cells}"


def as_dict(table: Sequence[Chances], policy: Policy, rule: MetricRule, known: KnownSpread) -> dict[str, Any]:
    """The table as JSON values; spread and margin as a policy states them."""
    return {
        "policy": policy.name,
        "rule": rule.name,
        "role": rule.role.value,
        "scale": rule.scale.value,
        "margin": rule.margin,
        "spread": known.prior.sd,
        "spread_kind": known.prior.kind,
        "spread_entry": known.entry or None,
        "notes": list(known.notes),
        "chances": [
            {
                "baseline_runs": each.baseline_runs,
                "candidate_runs": each.candidate_runs,
                "effect": effect,
                "block": each.block(effect * rule.harm_margin),
                "passed": each.passed(effect * rule.harm_margin),
            }
            for each in table
            for effect in EFFECTS
        ],
    }


def title(policy: Policy, rule: MetricRule, known: KnownSpread) -> str:
    """`perf, step_time: spread 2.00 % (shipped with the policy), margin 8.00 %`."""
    spread, margin = (amount(value, rule, rule.scale is Scale.LOG) for value in (known.prior.sd, rule.margin))
    return f"{policy.name}, {rule.name}: spread {spread} ({SOURCES[known.prior.kind]}), margin {margin}"


def _meaning(rule: MetricRule) -> str:
    if rule.scale is Scale.LOG or SUMMARIES[rule.reduction].logarithmic:
        return f"a fraction of the {rule.info.label}: 0.02 is 2 %"
    return f"in {rule.unit or 'units'} of the {rule.info.label}"
