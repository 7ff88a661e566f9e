"""The policy for a comparison with the anchor: many small steps away from it may add up to more than one margin."""

from __future__ import annotations

from dataclasses import replace

from gates.model.policy import Policy
from gates.model.rules import MetricRule, Scale, Worse

_LIMITS = ("margin", "headroom", "gain")


def anchored(policy: Policy) -> Policy:
    """The same policy with all margins `anchor_margins` times as wide. Facts are not compared: each change of them was
    accepted on the way."""
    times = policy.anchor_margins
    of_tier = {rule.name: rule for rule in policy.rules}
    overlays = []
    for overlay in policy.overlays:
        changed = {name: dict(changes) for name, changes in overlay.rules.items()}
        for name, changes in changed.items():
            wide = _widened(replace(of_tier[name], **changes), times)
            changes |= {key: getattr(wide, key) for key in _LIMITS if key in changes}
        overlays.append(replace(overlay, rules=changed))
    return replace(
        policy,
        name=f"{policy.name}, anchor",
        hard=replace(policy.hard, facts=False),
        rules=tuple(_widened(rule, times) for rule in policy.rules),
        overlays=tuple(overlays),
    )


def _widened(rule: MetricRule, times: float) -> MetricRule:
    """The rule with its limits `times` as wide. On the log scale, a fall of 100 % or more is no limit."""
    falls = rule.scale is Scale.LOG and rule.worse is not Worse.HIGHER
    margin = min(0.99, times * rule.margin) if falls else times * rule.margin
    most = None if rule.headroom is None else min(1.0, times * rule.headroom)
    return replace(rule, margin=margin, headroom=most, gain=None if rule.gain is None else times * rule.gain)
