"""What a comparison must satisfy: one rule per metric, the hard checks, and the levels of the tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from gates.metrics import METRICS, MetricInfo


class PolicyError(ValueError):
    """The policy cannot be applied as written."""


class Role(StrEnum):
    """HARD checks need no baseline; GATE metrics decide; ADVISORY ones warn; IGNORE switches a rule off."""

    HARD = "hard"
    GATE = "gate"
    ADVISORY = "advisory"
    IGNORE = "ignore"


class Scale(StrEnum):
    """LOG: changes are relative. IDENTITY: changes are in the metric's own unit."""

    LOG = "log"
    IDENTITY = "identity"


class Worse(StrEnum):
    """The direction of a change that is harm."""

    HIGHER = "higher"
    LOWER = "lower"
    BOTH = "both"


class Bootstrap(StrEnum):
    """What happens to the first version of a model, which has no baseline: AUTO makes it champion."""

    AUTO = "auto"
    MANUAL = "manual"


@dataclass(frozen=True, kw_only=True)
class MetricRule:
    """How one metric is judged.

    `margin` is the largest worsening that is tolerated: a fraction on the log scale (0.15 = 15 % worse),
    the metric's unit on the identity scale. `prior` is the spread between runs that is expected, on the
    same scale. `max_increase` (the metric's unit) caps the margin where a fraction of the baseline would be
    more than that.
    """

    name: str
    metric: str
    role: Role
    reduction: str
    scale: Scale
    worse: Worse
    margin: float
    prior: float
    must_have: bool
    max_increase: float | None

    @property
    def info(self) -> MetricInfo:
        """The metric's label, unit and nature."""
        return METRICS[self.metric]


@dataclass(frozen=True, kw_only=True)
class HardChecks:
    """Checks that need no baseline. PPO's limits: KL is summed over a response, approximate KL is per
    token."""

    completed: bool
    nonfinite: bool
    divergence: bool
    learned: bool
    loss_ratio: float
    loss_rebound: float
    loss_sigmas: float
    kl_limit: float
    approx_kl_limit: float
    entropy_floor: float


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """Changes to rules that apply when every fact in `when` has one of the listed values."""

    name: str
    when: Mapping[str, tuple[str, ...]]
    rules: Mapping[str, Mapping[str, Any]]

    def applies(self, facts: Mapping[str, str]) -> bool:
        """True if the facts (such as backend=cpu, algo=dpo) match."""
        return all(facts.get(key, "") in values for key, values in self.when.items())


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The rules of one tier."""

    name: str
    bootstrap: Bootstrap
    alpha_block: float
    alpha_pass: float
    min_candidate_runs: int
    min_baseline_runs: int
    warmup_steps: int
    min_steps: int
    prior_df: float
    hard: HardChecks
    rules: tuple[MetricRule, ...]
    overlays: tuple[Overlay, ...] = ()

    def resolve(self, facts: Mapping[str, str]) -> Policy:
        """The policy for these facts: matching overlays applied in their order, none left to apply."""
        rules = {rule.name: rule for rule in self.rules}
        for overlay in self.overlays:
            if overlay.applies(facts):
                for name, changes in overlay.rules.items():
                    rules[name] = replace(rules[name], **changes)
        return replace(self, rules=tuple(rules.values()), overlays=())


def policy_to_dict(policy: Policy) -> dict[str, Any]:
    """The policy as plain values with every key, which `parse_policy` reads back to an equal policy."""
    plain = {key: _plain(value) for key, value in vars(policy).items()}
    plain["hard"] = dict(vars(policy.hard))
    plain["rules"] = {
        rule.name: {key: _plain(value) for key, value in vars(rule).items() if key != "name"} for rule in policy.rules
    }
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


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else value
