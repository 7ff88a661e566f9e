"""What a comparison must satisfy: one rule per metric, the hard checks, and the levels of the tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from gates.model.looks import Looks
from gates.model.paradigm import paradigm_of
from gates.model.priors import Prior
from gates.model.rules import MetricRule, Scale


class PolicyError(ValueError):
    """The policy cannot be applied as written."""


class Bootstrap(StrEnum):
    """What happens to the first version of a model, which has no baseline: AUTO makes it champion."""

    AUTO = "auto"
    MANUAL = "manual"


@dataclass(frozen=True, kw_only=True)
class HardChecks:
    """Checks that need no baseline, except `facts`. In PPO's limits, KL is summed over a response and approximate KL is
    per token."""

    completed: bool
    nonfinite: bool
    divergence: bool
    learned: bool
    invariants: bool
    watch: bool
    facts: bool
    loss_ratio: float
    loss_rebound: float
    loss_sigmas: float
    kl_limit: float
    approx_kl_limit: float
    entropy_floor: float


@dataclass(frozen=True, kw_only=True)
class ValidityRules:
    """Beyond what a run's clock tells about the machine instead: see gates/evidence/validity.py. None switches a rule
    off.

    `reruns`: how often such a run, or one that broke off, is repeated.
    """

    clock_share: float | None
    sentinel_rise: float | None
    reruns: int


@dataclass(frozen=True, kw_only=True)
class OverrideRules:
    """What an override of a BLOCK requires. `operators`: how many people, 1 or 2."""

    operators: int


@dataclass(frozen=True, kw_only=True)
class KnownPriors:
    """Spreads that were calibrated or learnt from runs for which every fact in `when` holds.

    `rules`: rule → its prior, and the reduction and scale that it was measured with. If several apply, the one with the
    most facts counts (Policy.prior_of).
    """

    name: str
    when: Mapping[str, tuple[str, ...]]
    rules: Mapping[str, tuple[Prior, str, Scale]]

    def applies(self, facts: Mapping[str, str]) -> bool:
        """True if the facts match; an empty `when` always does."""
        return _match(self.when, facts)


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """Changes to rules that apply when every fact in `when` has one of the listed values."""

    name: str
    when: Mapping[str, tuple[str, ...]]
    rules: Mapping[str, Mapping[str, Any]]

    def applies(self, facts: Mapping[str, str]) -> bool:
        """True if the facts (such as backend=cpu, algo=dpo) match."""
        return _match(self.when, facts)


def _match(when: Mapping[str, tuple[str, ...]], facts: Mapping[str, str]) -> bool:
    """Whether each fact has one of the listed values, in upper or lower case."""
    return all(facts.get(key, "").lower() in {value.lower() for value in values} for key, values in when.items())


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The rules of one tier."""

    name: str
    bootstrap: Bootstrap
    top_up: bool
    alpha_block: float
    alpha_pass: float
    min_candidate_runs: int
    min_baseline_runs: int
    warmup_steps: int
    min_steps: int
    prior_df: float
    implausible_ratio: float
    signed_priors: float
    anchor_margins: float
    override: OverrideRules
    looks: Looks
    validity: ValidityRules
    hard: HardChecks
    rules: tuple[MetricRule, ...]
    overlays: tuple[Overlay, ...] = ()
    priors: tuple[KnownPriors, ...] = ()

    def resolve(self, facts: Mapping[str, str]) -> Policy:
        """The policy for these facts, with the matching overlays applied in order and none left. How runs learn
        (`paradigm`: supervised or reinforcement) is a fact that follows from the others."""
        recorded = [name for name, value in facts.items() if value in ("recorded", "early")]
        facts = {"paradigm": paradigm_of(facts.get("algo", ""), recorded), **facts}
        rules = {rule.name: rule for rule in self.rules}
        for overlay in self.overlays:
            if overlay.applies(facts):
                for name, changes in overlay.rules.items():
                    rules[name] = replace(rules[name], **changes)
        known = tuple(known for known in self.priors if known.applies(facts))
        return replace(self, rules=tuple(rules.values()), overlays=(), priors=known)

    def prior_of(self, rule: MetricRule) -> Prior:
        """The spread to expect, in a resolved policy: one measured for this rule, else the shipped one.

        Of several measured ones, the one with the most facts in its `when` counts; among equals, the last one written.
        """
        found, facts = Prior(sd=rule.prior, df=self.prior_df, kind="shipped"), 0
        for known in self.priors:
            prior, reduction, scale = known.rules.get(rule.name, (None, "", None))
            fits = (reduction, scale) == (rule.reduction, rule.scale)
            if prior is not None and fits and len(known.when) >= facts:
                found, facts = prior, len(known.when)
        return found

    def at_try(self, number: int) -> Policy:
        """The policy at a later try of the same code: PASS has less to spend (Looks.share_of_try), BLOCK as much as
        ever, so that harm is stopped at every try."""
        return replace(self, alpha_pass=self.alpha_pass * self.looks.share_of_try(number))

    def spending(self, share: float) -> Policy:
        """The policy with a share of both error levels, such as one look may spend."""
        return replace(self, alpha_block=self.alpha_block * share, alpha_pass=self.alpha_pass * share)
