"""What a comparison must satisfy: one rule per metric, the hard checks, and the levels of the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Generic, TypeVar

from canary_mlflow.gates.model.eval_rules import EvalRules, read_evals
from canary_mlflow.gates.model.fields import (
    PolicyError,
    choice,
    count,
    flag,
    listed,
    number,
    one_of,
    optional,
    plain,
    section,
    text,
)
from canary_mlflow.gates.model.paradigm import bound_of, paradigm_of
from canary_mlflow.gates.model.records import SUMMARIES
from canary_mlflow.gates.model.rules import SHIPPED_DF, MetricRule, Prior, Scale


class FreshBaseline(StrEnum):
    """When a run of the baseline's code is made beside each added candidate run. DIFFERS: if the stored runs were made
    on another host or day."""

    NEVER = "never"
    DIFFERS = "differs"
    ALWAYS = "always"


class WithoutSource(StrEnum):
    """What happens if the baseline's code is not available: judge by its stored runs alone, or stop."""

    UNPAIRED = "unpaired"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Looks:
    """When a growing candidate is judged: at each of these numbers of `runs`, with these `shares` of both error levels.

    The shares add up to 1, so that looking several times spends no more than looking once (union bound).
    """

    runs: Annotated[tuple[int, ...], listed(count(1))]
    shares: Annotated[tuple[float, ...], listed(number(0, 1, above=True))]
    fresh_baseline: Annotated[FreshBaseline, choice(FreshBaseline)]
    without_source: Annotated[WithoutSource, choice(WithoutSource)]

    def reached(self, candidate_runs: int, taken: Sequence[int] = ()) -> int:
        """The look, counted from 1, that a candidate with so many runs is at. `taken`: how many runs it had at each
        earlier look at other evidence. A number between two looks counts as the later one if the earlier one is
        spent."""
        return min(len(self.runs), max(1, self._planned(candidate_runs), self._spent(taken) + 1))

    def share(self, look: int, taken: Sequence[int] = ()) -> float:
        """The share that this look may spend: its own and those of earlier looks that were never taken."""
        return sum(self.shares[self._spent(taken) : look])

    def ending_with(self, runs: int) -> Looks:
        """The plan with its last look at no fewer than `runs` runs."""
        return replace(self, runs=(*self.runs[:-1], max(self.runs[-1], runs)))

    def share_beyond(self, taken: Sequence[int]) -> float:
        """The share that one more look after the plan's last may spend: half, then a quarter … of what the plan has, so
        that however many follow, all of them together err no more often than the plan (union bound)."""
        within = next((count for count in range(len(taken) + 1) if self._spent(taken[:count]) == len(self.runs)), 0)
        return float(0.5 ** (len(taken) - within + 1))

    @staticmethod
    def share_of_try(number: int) -> float:
        """The share of PASS's error level at this try of the same code against the same champion, counted from 1.

        All of it at the first try, then 1/2, 1/6, 1/12 …, 1/(k(k - 1)), which add up to one more level, however many
        tries follow (union bound).
        """
        return 1.0 if number <= 1 else 1.0 / (number * (number - 1))

    def left(self, taken: Sequence[int]) -> tuple[int, ...]:
        """The numbers of runs at which looks are still to come."""
        return self.runs[self._spent(taken) :]

    def _planned(self, runs: int) -> int:
        return sum(planned <= runs for planned in self.runs)

    def _spent(self, taken: Sequence[int]) -> int:
        """How many looks a candidate has used up that was looked at with these numbers of runs, in this order."""
        spent = 0
        for runs in taken:
            spent = min(len(self.runs), max(spent + 1, self._planned(runs)))
        return spent


class Bootstrap(StrEnum):
    """What happens to the first version of a model, which has no baseline: AUTO makes it champion."""

    AUTO = "auto"
    MANUAL = "manual"


@dataclass(frozen=True, kw_only=True)
class HardChecks:
    """Checks that need no baseline, except `facts`."""

    completed: Annotated[bool, flag]
    nonfinite: Annotated[bool, flag]
    divergence: Annotated[bool, flag]
    learned: Annotated[bool, flag]
    invariants: Annotated[bool, flag]
    watch: Annotated[bool, flag]
    facts: Annotated[bool, flag]


EARLY = 0.2
"""The share of BLOCK's level that all early looks of a session spend together, if the policy has it fail fast."""


@dataclass(frozen=True, kw_only=True)
class ValidityRules:
    """Beyond what a run's clock tells about the machine instead: see gates/evidence/clocks.py. None switches it off.

    `reruns`: how often such a run, or one that broke off, is repeated.
    """

    sentinel_rise: Annotated[float | None, optional(number(0, above=True))]
    reruns: Annotated[int, count(0)]


@dataclass(frozen=True, kw_only=True)
class OverrideRules:
    """What an override of a BLOCK requires. `operators`: how many people, 1 or 2."""

    operators: Annotated[int, count(1, 2)]


@dataclass(frozen=True, kw_only=True)
class KnownPrior(Prior):
    """A spread with the reduction and scale that it was measured with."""

    reduction: Annotated[str, one_of(SUMMARIES, "reduction")]
    scale: Annotated[Scale, choice(Scale)]

    @classmethod
    def of(cls, rule: MetricRule, prior: Prior) -> KnownPrior:
        return cls(**vars(prior), reduction=rule.reduction, scale=rule.scale)

    def fits(self, rule: MetricRule) -> bool:
        """Whether the rule's numbers are of the kind that was measured."""
        return (self.reduction, self.scale) == (rule.reduction, rule.scale)


Said = TypeVar("Said")


@dataclass(frozen=True, kw_only=True)
class Conditional(Generic[Said]):
    """What a policy says of some rules where every fact in `when` has one of the listed values, in upper or lower case;
    an empty `when` always holds."""

    name: str
    when: Mapping[str, tuple[str, ...]]
    rules: Mapping[str, Said]

    def holds(self, facts: Mapping[str, str]) -> bool:
        """Whether it applies to runs with these facts."""
        wanted = ((facts.get(key, ""), values) for key, values in self.when.items())
        return all(value.lower() in {one.lower() for one in values} for value, values in wanted)

    def to_dict(self) -> dict[str, Any]:
        """What a policy file holds under its name."""
        found: dict[str, Any] = plain({"when": self.when, "rules": self.rules})
        return found


Overlay = Conditional[Mapping[str, Any]]
"""Changes of rules."""
KnownPriors = Conditional[KnownPrior]
"""Spreads that were calibrated or learnt from such runs. If several apply, the one with the most facts counts
(Policy.prior_of)."""


def _looks(path: str, body: Any) -> Looks:
    found: Looks = section(Looks)(path, body)
    runs, shares = list(found.runs), list(found.shares)
    if runs != sorted(set(runs)) or len(runs) != len(shares) or abs(sum(shares) - 1) > 1e-9:
        raise PolicyError(
            f"{path}: found runs {runs} with shares {shares}; expected as many shares as looks, adding up to 1, and "
            "rising runs"
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The rules of one tier."""

    name: Annotated[str, text]
    bootstrap: Annotated[Bootstrap, choice(Bootstrap)]
    top_up: Annotated[bool, flag]
    fail_fast: Annotated[bool, flag]
    alpha_block: Annotated[float, number(0, 0.5, above=True)]
    alpha_pass: Annotated[float, number(0, 0.5, above=True)]
    min_baseline_runs: Annotated[int, count(1)]
    warmup_steps: Annotated[int, count(0)]
    min_steps: Annotated[int, count(1)]
    anchor_margins: Annotated[float, number(1)]
    override: Annotated[OverrideRules, section(OverrideRules)]
    refuse_code: Annotated[bool, flag]
    looks: Annotated[Looks, _looks]
    validity: Annotated[ValidityRules, section(ValidityRules)]
    hard: Annotated[HardChecks, section(HardChecks)]
    rules: tuple[MetricRule, ...]
    overlays: tuple[Overlay, ...] = ()
    priors: tuple[KnownPriors, ...] = ()
    evals: Annotated[EvalRules | None, read_evals] = None

    def resolve(self, facts: Mapping[str, str]) -> Policy:
        """The policy for these facts, with the matching overlays applied in order and none left. Two facts follow from
        the others: how runs learn (`paradigm`: supervised or reinforcement) and, unless the runs tell, what their steps
        wait for (`bound`: host on a CPU, else device). All steps together may take as much longer as a step may."""
        recorded = [name for name, value in facts.items() if value in ("recorded", "early")]
        facts = {"paradigm": paradigm_of(facts.get("algo", ""), recorded), **bound_of(facts), **facts}
        rules = {rule.name: rule for rule in self.rules}
        for overlay in self.overlays:
            if overlay.holds(facts):
                for name, changes in overlay.rules.items():
                    rules[name] = replace(rules[name], **changes)
        for name, rule in rules.items():
            of_steps = rules.get(rule.metric, rule).margin
            if rule.reduction in ("steady", "whole") and of_steps > rule.margin:
                rules[name] = replace(rule, margin=of_steps)
        known = tuple(known for known in self.priors if known.holds(facts))
        return replace(self, rules=tuple(rules.values()), overlays=(), priors=known)

    def anchored(self) -> Policy:
        """A resolved policy for the comparison with the anchor, where many small steps may add up to more than one
        margin: its limits are `anchor_margins` times as wide. Facts are not compared: each change of them was accepted
        on the way."""
        rules = tuple(rule.widened(self.anchor_margins) for rule in self.rules)
        evals = self.evals and self.evals.widened(self.anchor_margins)
        hard = replace(self.hard, facts=False)
        return replace(self, name=f"{self.name}, anchor", hard=hard, rules=rules, evals=evals)

    def prior_of(self, rule: MetricRule) -> Prior:
        """The spread to expect, in a resolved policy: one measured for this rule, else the shipped one.

        Of several measured ones, the one with the most facts in its `when` counts; among equals, the last one written.
        """
        fitting = [known for known in self.priors if rule.name in known.rules and known.rules[rule.name].fits(rule)]
        if not fitting:
            return Prior(sd=rule.prior, df=SHIPPED_DF, kind="shipped")
        return max(reversed(fitting), key=lambda known: len(known.when)).rules[rule.name]

    def at_try(self, number: int) -> Policy:
        """The policy at a later try of the same code: PASS has less to spend (Looks.share_of_try), BLOCK as much as
        ever, so that harm is stopped at every try."""
        return replace(self, alpha_pass=self.alpha_pass * self.looks.share_of_try(number))

    def of_metrics(self) -> Policy:
        """The policy with the part of BLOCK's level that is left for metrics: benchmarks have theirs."""
        weights = sum(rule.weight for rule in self.rules if rule.blocks)
        share = weights / (weights + self.evals.deciding) if self.evals and self.evals.deciding else 1.0
        return replace(self, alpha_block=self.alpha_block * share)

    def early_share(self, runs: int, missing: int) -> float:
        """The share of BLOCK's level for a look after so many runs: half of EARLY after the second one, and each time
        half of what is left, however many are planned; of a look with no runs missing, what they leave. A policy that
        tops up has its planned looks instead."""
        if not self.fail_fast or self.top_up:
            return 1.0
        return EARLY * 0.5 ** max(1, runs - 1) if missing else 1.0 - EARLY

    def spending(self, share: float) -> Policy:
        """The policy with a share of both error levels, such as one look may spend."""
        return replace(self, alpha_block=self.alpha_block * share, alpha_pass=self.alpha_pass * share)


def policy_to_dict(policy: Policy) -> dict[str, Any]:
    """The policy as plain values with every key, which `parse_policy` reads back to an equal policy."""
    found: dict[str, Any] = plain({**vars(policy), "rules": (), "overlays": (), "priors": (), "evals": None})
    del found["evals"]  # a policy without this section stays as it was
    found["rules"] = {rule.name: _rule(rule) for rule in policy.rules}
    found["overlays"] = {one.name: one.to_dict() for one in policy.overlays}
    found["priors"] = {known.name: known.to_dict() for known in policy.priors}
    found |= {"evals": policy.evals.to_dict()} if policy.evals else {}
    return found


def _rule(rule: MetricRule) -> dict[str, Any]:
    """The rule with all of its keys; the user's own metric with its description."""
    found: dict[str, Any] = plain({key: value for key, value in vars(rule).items() if key not in ("name", "own")})
    if rule.own is not None:
        better = "higher" if rule.own.worse == "lower" else "lower"
        found["metric"] = {"name": rule.metric, "better": better, "scale": rule.own.scale, "unit": rule.own.unit}
    return found
