"""A mapping (from YAML) becomes a Policy; what is unknown, missing or impossible is refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

from canary_mlflow.gates.model.bound import Bound
from canary_mlflow.gates.model.fields import (
    PolicyError,
    Reader,
    choice,
    fields,
    mapping,
    one_of,
    readers,
    section,
    some_fields,
    text,
    unknown,
    words,
)
from canary_mlflow.gates.model.metrics import METRICS, RECORDINGS, USUAL, Metric
from canary_mlflow.gates.model.paradigm import Paradigm
from canary_mlflow.gates.model.policy import Conditional, KnownPrior, Overlay, Policy
from canary_mlflow.gates.model.records import SUMMARIES
from canary_mlflow.gates.model.rules import MetricRule, Role, Scale, Worse

INFERRED: Mapping[str, type[Paradigm] | type[Bound]] = {"paradigm": Paradigm, "bound": Bound}
"""Facts that follow from others, with the values that they have."""
LARGEST_SHARE = 2.0
"""No limit of a relative change is larger (three times as much); one that is larger was meant as percent."""


def _own_metric(path: str, value: Any) -> str | tuple[str, Metric]:
    """The name of a metric in our table; or the name and description of the user's own metric."""
    if not isinstance(value, Mapping):
        return str(one_of(METRICS, "metric")(path, value))
    found = fields(path, {"unit": "", **value}, _OWN, instead="name a metric of ours")
    worse = _WORSE[found.pop("better")]
    return found["name"], Metric(label=found["name"].replace("_", " "), worse=worse, **found)


_WORSE = {"higher": "lower", "lower": "higher"}
_OWN: dict[str, Reader] = {
    "name": text,
    "better": one_of(_WORSE, "direction"),
    "scale": choice(Scale),
    "unit": lambda path, value: value if value == "" else text(path, value),
}
RULE_KEYS: dict[str, Reader] = {"metric": _own_metric, **readers(MetricRule)}


def parse_rule(name: str, body: Any, names: Iterable[Any]) -> MetricRule:
    """Read a rule: a margin at least; the metric table supplies the rest, for a rule that it does not know all but the
    prior. `names`: the names of all rules, for suggestions when one is misspelt.

    Raises PolicyError.
    """
    path = f"rules.{name}"
    found = some_fields(path, body, RULE_KEYS)
    usual = USUAL.get(name, {})
    if found.get("metric", usual.get("metric", name)) == usual.get("metric", name):
        found = {**usual, **found}
    if "metric" not in found:
        if name not in METRICS:
            alike = get_close_matches(name, [str(other) for other in names if other != name], n=1)
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
    if rule.gain is not None and info.group == "perf":
        raise PolicyError(f"{path}.gain: found {rule.gain}; it is for what is learned")


def parse_policy(body: Mapping[str, Any]) -> Policy:
    """Read a policy. Every key is required, but for `priors` and what policies of earlier rows lack: defaults live in
    the shipped policy files, not in code.

    Raises PolicyError with one line: the key, the value found, the valid ones.
    """
    found = fields(
        "policy",
        {"priors": {}, "refuse_code": False, "fail_fast": False, "evals": None, **mapping("policy", body)},
        {**readers(Policy), "rules": mapping, "overlays": mapping, "priors": mapping},
    )
    overlays = _conditionals("overlays", found["overlays"], partial(some_fields, readers=RULE_KEYS))
    bodies = mapping("rules", found["rules"])
    rules = {str(name): parse_rule(str(name), rule, bodies) for name, rule in bodies.items()}
    for overlay in overlays:
        for name in overlay.rules:
            if name not in rules:
                raise unknown(f"overlays.{overlay.name}.rules", "rule", name, rules)
    priors = _conditionals("priors", found["priors"], section(KnownPrior))
    policy = Policy(**{**found, "priors": tuple(priors), "rules": tuple(rules.values()), "overlays": tuple(overlays)})
    for overlay in overlays:
        _check_overlaid(policy, overlay)
    return policy


def _conditionals(key: str, given: Any, read: Reader) -> list[Conditional[Any]]:
    """The overlays or the spreads of a policy, what they say of each rule read by `read`."""
    found = []
    for name, body in mapping(key, given).items():
        path = f"{key}.{name}"
        if key == "overlays" and body is None:  # removed
            continue
        held = fields(path, body, {"when": mapping, "rules": mapping})
        when = {str(fact): words(f"{path}.when.{fact}", value) for fact, value in held["when"].items()}
        _check_when(path, when)
        rules = {str(rule): read(f"{path}.rules.{rule}", said) for rule, said in held["rules"].items()}
        found.append(Conditional(name=str(name), when=when, rules=rules))
    return found


def _check_when(path: str, found: Mapping[str, tuple[str, ...]]) -> None:
    if not found and path.startswith("overlays."):
        raise PolicyError(f"{path}.when: found nothing; expected at least one fact, such as 'backend: cpu'")
    for key, values in found.items():
        valid: Iterable[str] = INFERRED.get(key, RECORDINGS if key in METRICS else ())
        if valid and (wrong := sorted(set(values) - set(valid))):
            raise PolicyError(f"{path}.when.{key}: found {wrong[0]!r}; valid: {', '.join(valid)}")
        if key not in METRICS and not set(RECORDINGS).isdisjoint(values):
            raise unknown(f"{path}.when", "metric", key, METRICS)


def _check_overlaid(policy: Policy, overlay: Overlay) -> None:
    facts = {key: values[0] for key, values in overlay.when.items()}
    for rule in policy.resolve(facts).rules:
        if rule.name in overlay.rules:
            check_rule(f"overlays.{overlay.name}.rules.{rule.name}", rule)
