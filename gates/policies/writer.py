"""A Policy becomes a mapping again: what a verdict stores, so that it can be repeated."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from gates.model.policy import KnownPriors, Policy
from gates.model.rules import MetricRule


def policy_to_dict(policy: Policy) -> dict[str, Any]:
    """The policy as plain values with every key, which `parse_policy` reads back to an equal policy."""
    plain = {key: _plain(value) for key, value in vars(policy).items()}
    plain["validity"] = dict(vars(policy.validity))
    plain["hard"] = dict(vars(policy.hard))
    plain["override"] = dict(vars(policy.override))
    plain["rules"] = {rule.name: _rule(rule) for rule in policy.rules}
    plain["looks"] = {
        key: list(value) if isinstance(value, tuple) else _plain(value) for key, value in vars(policy.looks).items()
    }
    plain["priors"] = {known.name: known_to_dict(known) for known in policy.priors}
    plain["overlays"] = {
        overlay.name: {
            "when": {key: list(values) for key, values in overlay.when.items()},
            "rules": {
                name: {key: _plain(value) for key, value in changes.items()} for name, changes in overlay.rules.items()
            },
        }
        for overlay in policy.overlays
    }
    return plain


def known_to_dict(known: KnownPriors) -> dict[str, Any]:
    """The spreads as a policy file holds them under their name."""
    rules = {
        name: {
            "sd": prior.sd,
            "between": prior.between,
            "df": prior.df,
            "kind": prior.kind,
            "reduction": reduction,
            "scale": scale.value,
        }
        for name, (prior, reduction, scale) in known.rules.items()
    }
    return {"when": {key: list(values) for key, values in known.when.items()}, "rules": rules}


def _rule(rule: MetricRule) -> dict[str, Any]:
    """The rule with all of its keys; the user's own metric with its description."""
    plain = {key: _plain(value) for key, value in vars(rule).items() if key not in ("name", "own")}
    if rule.own is not None:
        better = "higher" if rule.own.worse == "lower" else "lower"
        plain["metric"] = {"name": rule.metric, "better": better, "scale": rule.own.scale, "unit": rule.own.unit}
    return plain


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else value
