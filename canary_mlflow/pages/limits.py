"""The limits that values must not go beyond, and who sets them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from canary_mlflow.policies import load_policy, load_watch, policy_names
from canary_mlflow.tags import WATCH_POLICY
from gates.model.rules import MetricRule, Scale
from gates.model.wording import quantity


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A fixed limit. `side`: above, below or both (the absolute value counts). `source`: who sets it."""

    value: float
    source: str
    side: str = "above"

    def broken_by(self, value: float) -> bool:
        """Whether the value lies beyond it; NaN always does."""
        if math.isnan(value):
            return True
        if self.side == "below":
            return value < self.value
        return (abs(value) if self.side == "both" else value) > self.value

    def shown(self, unit: str) -> str:
        """`at most 40`."""
        word = {"above": "at most", "below": "at least", "both": "within ±"}[self.side]
        return f"{word}{'' if self.side == 'both' else ' '}{quantity(self.value, unit)}"


def limits_of(tags: Mapping[str, str]) -> Mapping[str, Limit]:
    """The limits of a run by canonical name: those of the policy that watches it.

    Limits that are not set are absent. Only shipped policies are read: a tag must not name a file to open.
    """
    watch = tags.get(WATCH_POLICY, "")
    return shipped_limits(watch if watch in policy_names("watch") else "default")


@lru_cache(maxsize=16)
def shipped_limits(watch: str) -> Mapping[str, Limit]:
    """The limits that a policy of the watch sets."""
    rules = load_watch(watch)
    found = {
        "nonfinite": Limit(value=0, source="any is too many"),
        "truncated_share": Limit(value=rules.facts.capped_share, source="watch"),
    }
    sides = {"entropy": "below", "kl_target_error": "both"}
    for name, ceiling in rules.ceilings.items():
        if ceiling is not None:
            found[name] = Limit(value=ceiling, source="watch", side=sides.get(name, "above"))
    return found


@lru_cache(maxsize=16)
def shipped_rules(tier: str) -> Mapping[str, MetricRule]:
    """How the tier's gate judges the level of each metric; for an unknown tier, the smoke tier's."""
    rules = load_policy(tier if tier in policy_names() else "smoke").rules
    return {rule.metric: rule for rule in rules if rule.name == rule.metric}


def tolerated(rule: MetricRule | None, level: float) -> float:
    """The distance from a level that the gate tolerates, in the metric's unit; 0 if no rule judges it."""
    if rule is None:
        return 0.0
    return rule.margin * level if rule.scale is Scale.LOG else rule.margin
