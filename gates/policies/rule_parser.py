"""A rule's mapping (from YAML) becomes a MetricRule; combinations that would judge the wrong thing are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from gates.model.metrics import METRICS, Metric
from gates.model.policy import PolicyError
from gates.model.rules import MetricRule, Role, Scale, Worse
from gates.model.summaries import SUMMARIES
from gates.policies.fields import Reader, choice, fields, flag, number, one_of, optional, some_fields, text

LEAST_SPREAD = 1e-12
"""No spread between runs is smaller: rounding alone causes as much, and the square of a much smaller one is 0."""
LARGEST_SHARE = 2.0
"""No limit of a relative change is larger (three times as much); one that is larger was meant as percent."""


def _own_metric(path: str, value: Any) -> str | tuple[str, Metric]:
    """The name of a metric in our table; or the name and description of the user's own metric."""
    if not isinstance(value, Mapping):
        return str(one_of(METRICS, "metric")(path, value))
    found = {"unit": "", **fields(path, {"unit": "", **value}, _OWN, instead="name a metric of ours")}
    worse = {Better.HIGHER: "lower", Better.LOWER: "higher"}[found["better"]]
    label = found["name"].replace("_", " ")
    name = found["name"]
    return name, Metric(name=name, label=label, unit=found["unit"], worse=worse, scale=found["scale"])


class Better(StrEnum):
    """The direction in which the user's own metric gets better."""

    HIGHER = "higher"
    LOWER = "lower"


_OWN: dict[str, Reader] = {
    "name": text,
    "better": choice(Better),
    "scale": choice(Scale),
    "unit": lambda path, value: value if value == "" else text(path, value),
}
RULE_KEYS: dict[str, Reader] = {
    "metric": _own_metric,
    "role": choice(Role, kept_for={Role.HARD: "hard checks stand under 'hard:'"}),
    "reduction": one_of(SUMMARIES, "reduction"),
    "scale": choice(Scale),
    "worse": choice(Worse),
    "margin": number(0),
    "prior": number(LEAST_SPREAD),
    "must_have": flag,
    "headroom": optional(number(0, 1, above=True)),
    "weight": number(0, above=True),
}


def parse_rule(name: str, body: Any, names: Iterable[Any]) -> MetricRule:
    """Read a rule: `margin` and `prior` at least; the metric table supplies the rest. `names`: the names of all rules,
    for suggestions when one is misspelt.

    Raises PolicyError.
    """
    path = f"rules.{name}"
    found = some_fields(path, body, RULE_KEYS)
    if "metric" not in found:
        alike = get_close_matches(name, [str(other) for other in names if other != name], n=1)
        if name not in METRICS:
            instead = f"write '{alike[0]}' if that rule is meant" if alike else "say which metric it judges"
            raise PolicyError(f"{path}: metric missing; '{name}' is none of ours; {instead}")
        found["metric"] = name
    if missing := [key for key in ("margin", "prior") if key not in found]:
        raise PolicyError(f"{path}: {', '.join(missing)} missing; expected a margin and a prior; write them")
    metric, own = found["metric"] if isinstance(found["metric"], tuple) else (found["metric"], None)
    info = own or METRICS[metric]
    reduction = found.get("reduction", "last" if own else "iqm")
    defaults = {
        "role": Role.GATE,
        "reduction": reduction,
        "scale": Scale.IDENTITY if SUMMARIES[reduction].logarithmic else Scale(info.scale),
        "worse": Worse.HIGHER if SUMMARIES[reduction].logarithmic else Worse(info.worse),
        "must_have": False,
        "headroom": None,
    }
    rule = MetricRule(name=name, **{**defaults, **found, "metric": metric, "own": own})
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
    if rule.headroom is not None and (rule.worse is not Worse.HIGHER or info.unit != "MiB"):
        raise PolicyError(f"{path}.headroom: found {rule.headroom}; it is for memory that is worse when higher")
