"""A rule's mapping (from YAML) becomes a MetricRule; combinations that would judge the wrong thing are refused."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from gates.fields import Reader, choice, fields, flag, number, one_of, optional
from gates.metrics import METRICS
from gates.policy import PolicyError
from gates.rules import MetricRule, Role, Scale, Worse
from gates.summaries import SUMMARIES

LEAST_SPREAD = 1e-12
"""No spread between runs is smaller: rounding alone makes such a one, and squares of much smaller ones are 0."""
LARGEST_SHARE = 2.0
"""No limit of a relative change is larger: three times as much. What is meant as percent is."""

RULE_KEYS: dict[str, Reader] = {
    "metric": one_of(METRICS, "metric"),
    "role": choice(Role, kept_for={Role.HARD: "hard checks stand under 'hard:'"}),
    "reduction": one_of(SUMMARIES, "reduction"),
    "scale": choice(Scale),
    "worse": choice(Worse),
    "margin": number(0),
    "prior": number(LEAST_SPREAD),
    "must_have": flag,
    "max_increase": optional(number(0, above=True)),
}


def parse_rule(name: str, body: Any, names: Iterable[Any]) -> MetricRule:
    """Read a rule, every key of it; `names`: those of all rules, among which a misspelt one is looked for.

    Raises PolicyError.
    """
    path = f"rules.{name}"
    alike = get_close_matches(name, [str(other) for other in names if other != name], n=1)
    instead = {"instead": f"write '{alike[0]}' if that rule is meant"} if alike else {}
    rule = MetricRule(name=name, **fields(path, body, RULE_KEYS, **instead))
    check_rule(path, rule)
    return rule


def check_rule(path: str, rule: MetricRule) -> None:
    """Refuse combinations that would judge the wrong thing."""
    summary, info = SUMMARIES[rule.reduction], rule.info
    for key, value in (("margin", rule.margin), ("prior", rule.prior)):
        if rule.scale is Scale.LOG and value > LARGEST_SHARE:
            raise PolicyError(
                f"{path}.{key}: found {value:g}, which is {100 * value:g} %; expected a fraction, at most "
                f"{LARGEST_SHARE:g}; write {value / 100:g} for {value:g} %"
            )
    if rule.reduction == "rate" and rule.metric != "tokens_per_second":
        raise PolicyError(f"{path}.reduction: found 'rate' for '{rule.metric}'; it is for tokens_per_second only")
    if summary.logarithmic and rule.scale is Scale.LOG:
        raise PolicyError(f"{path}.scale: found 'log'; '{rule.reduction}' is a logarithm already; expected identity")
    if rule.scale is Scale.LOG and info.scale == Scale.IDENTITY:
        raise PolicyError(f"{path}.scale: found 'log'; {rule.metric} can be zero or negative; expected identity")
    if not summary.logarithmic and Worse.BOTH not in (rule.worse, info.worse) and rule.worse != info.worse:
        raise PolicyError(
            f"{path}.worse: found '{rule.worse}'; {rule.metric} is worse when {info.worse}; "
            f"expected {info.worse} or both"
        )
    if rule.scale is Scale.LOG and rule.worse is not Worse.HIGHER and rule.margin >= 1:
        raise PolicyError(
            f"{path}.margin: found {rule.margin}; a fall of 100 % or more cannot be a limit; expected < 1"
        )
    if rule.max_increase is not None and rule.worse is not Worse.HIGHER:
        raise PolicyError(f"{path}.max_increase: found {rule.max_increase}; it needs 'worse: higher'; expected null")
