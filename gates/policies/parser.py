"""A mapping (from YAML) becomes a Policy; what is unknown, missing or impossible is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gates.model.looks import FreshBaseline, Looks, WithoutSource
from gates.model.metrics import METRICS, RECORDINGS
from gates.model.paradigm import Paradigm
from gates.model.policy import (
    Bootstrap,
    HardChecks,
    KnownPriors,
    Overlay,
    OverrideRules,
    Policy,
    PolicyError,
    ValidityRules,
)
from gates.model.priors import Prior
from gates.model.rules import Scale
from gates.model.summaries import SUMMARIES
from gates.policies.fields import (
    Reader,
    choice,
    count,
    facts,
    fields,
    flag,
    listed,
    mapping,
    number,
    one_of,
    optional,
    some_fields,
    text,
    unknown,
)
from gates.policies.rule_parser import LEAST_SPREAD, RULE_KEYS, check_rule, parse_rule


def parse_policy(body: Mapping[str, Any]) -> Policy:
    """Read a policy. Every key is required: defaults live in the shipped policy files, not in code.

    Raises PolicyError with one line: the key, the value found, the valid ones.
    """
    found = fields("policy", body, _POLICY)
    given = mapping("overlays", found["overlays"]).items()
    overlays = [_overlay(name, overlay) for name, overlay in given if overlay is not None]  # None: removed
    bodies = mapping("rules", found["rules"])
    rules = {str(name): parse_rule(str(name), rule, bodies) for name, rule in bodies.items()}
    for overlay in overlays:
        for name in overlay.rules:
            if name not in rules:
                raise unknown(f"overlays.{overlay.name}.rules", "rule", name, rules)
    priors = tuple(_known_priors(name, known) for name, known in mapping("priors", found["priors"]).items())
    policy = Policy(**{**found, "priors": priors, "rules": tuple(rules.values()), "overlays": tuple(overlays)})
    for overlay in overlays:
        _check_overlaid(policy, overlay)
    return policy


def _overlay(name: Any, body: Any) -> Overlay:
    path = f"overlays.{name}"
    found = fields(path, body, {"when": mapping, "rules": mapping})
    when = _when(path, found["when"])
    if not when:
        raise PolicyError(f"{path}.when: found nothing; expected at least one fact, such as 'backend: cpu'")
    rules = found["rules"].items()
    changes = {str(rule): some_fields(f"{path}.rules.{rule}", change, RULE_KEYS) for rule, change in rules}
    return Overlay(name=str(name), when=when, rules=changes)


def _known_priors(name: Any, body: Any) -> KnownPriors:
    path = f"priors.{name}"
    found = fields(path, body, {"when": mapping, "rules": mapping})
    rules = {}
    for rule, prior in found["rules"].items():
        read = fields(f"{path}.rules.{rule}", prior, _PRIOR)
        reduction, scale = read.pop("reduction"), read.pop("scale")
        rules[str(rule)] = (Prior(**read), reduction, scale)
    return KnownPriors(name=str(name), when=_when(path, found["when"]), rules=rules)


def _when(path: str, body: Mapping[Any, Any]) -> dict[str, tuple[str, ...]]:
    found = {str(key): facts(f"{path}.when.{key}", value) for key, value in body.items()}
    for key, values in found.items():
        valid = Paradigm if key == "paradigm" else RECORDINGS if key in METRICS else ()
        if valid and (wrong := sorted(set(values) - set(valid))):
            raise PolicyError(f"{path}.when.{key}: found {wrong[0]!r}; valid: {', '.join(valid)}")
        if key not in METRICS and not set(RECORDINGS).isdisjoint(values):
            raise unknown(f"{path}.when", "metric", key, METRICS)
    return found


def _looks(path: str, body: Any) -> Looks:
    found = fields(path, body, _LOOKS)
    runs, shares = found["runs"], found["shares"]
    if list(runs) != sorted(set(runs)) or len(runs) != len(shares) or abs(sum(shares) - 1) > 1e-9:
        raise PolicyError(
            f"{path}: found runs {list(runs)} with shares {list(shares)}; expected as many shares as looks, adding up "
            "to 1, and rising runs"
        )
    return Looks(**found)


def _check_overlaid(policy: Policy, overlay: Overlay) -> None:
    facts = {key: values[0] for key, values in overlay.when.items()}
    for rule in policy.resolve(facts).rules:
        if rule.name in overlay.rules:
            check_rule(f"overlays.{overlay.name}.rules.{rule.name}", rule)


_HARD: dict[str, Reader] = {
    "completed": flag,
    "nonfinite": flag,
    "divergence": flag,
    "learned": flag,
    "invariants": flag,
    "watch": flag,
    "facts": flag,
    "loss_ratio": number(1, above=True),
    "loss_rebound": number(1, above=True),
    "loss_sigmas": number(0, above=True),
    "kl_limit": number(0, above=True),
    "approx_kl_limit": number(0, above=True),
    "entropy_floor": number(0, 1),
}
_PRIOR: dict[str, Reader] = {
    "sd": number(LEAST_SPREAD),
    "between": number(0),
    "df": number(0, above=True),
    "kind": one_of(dict.fromkeys(("calibrated", "learnt")), "kind"),
    "reduction": one_of(SUMMARIES, "reduction"),
    "scale": choice(Scale),
}
_LOOKS: dict[str, Reader] = {
    "runs": listed(count(1)),
    "shares": listed(number(0, 1, above=True)),
    "fresh_baseline": choice(FreshBaseline),
    "without_source": choice(WithoutSource),
}
_OVERRIDE: dict[str, Reader] = {"operators": count(1, 2)}
_VALIDITY: dict[str, Reader] = {
    "clock_share": optional(number(0, 1, above=True)),
    "sentinel_rise": optional(number(0, above=True)),
    "reruns": count(0),
}
_POLICY: dict[str, Reader] = {
    "name": text,
    "bootstrap": choice(Bootstrap),
    "top_up": flag,
    "alpha_block": number(0, 0.5, above=True),
    "alpha_pass": number(0, 0.5, above=True),
    "min_candidate_runs": count(2),
    "min_baseline_runs": count(1),
    "warmup_steps": count(0),
    "min_steps": count(1),
    "prior_df": number(0, above=True),
    "implausible_ratio": number(1, above=True),
    "signed_priors": number(0, above=True),
    "anchor_margins": number(1),
    "override": lambda path, value: OverrideRules(**fields(path, value, _OVERRIDE)),
    "looks": _looks,
    "validity": lambda path, value: ValidityRules(**fields(path, value, _VALIDITY)),
    "hard": lambda path, value: HardChecks(**fields(path, value, _HARD)),
    "rules": mapping,
    "overlays": mapping,
    "priors": mapping,
}
