"""The policy for a comparison with the anchor, from which many small steps may add up to more than one margin."""

from __future__ import annotations

from dataclasses import replace

from gates.policy import MetricRule, Policy, Scale, Worse


def anchored(policy: Policy) -> Policy:
    """The same policy with all margins `anchor_margins` times as wide."""
    rules = {rule.name: replace(rule, margin=_wider(rule, policy.anchor_margins)) for rule in policy.rules}
    overlays = []
    for overlay in policy.overlays:
        changed = {name: dict(changes) for name, changes in overlay.rules.items()}
        for name, changes in changed.items():
            if "margin" in changes:
                changes["margin"] = _wider(replace(rules[name], **changes), policy.anchor_margins)
        overlays.append(replace(overlay, rules=changed))
    name = f"{policy.name}, anchor"
    return replace(policy, name=name, rules=tuple(rules.values()), overlays=tuple(overlays))


def _wider(rule: MetricRule, times: float) -> float:
    """A fall of 100 % or more is no limit on the log scale."""
    falls = rule.scale is Scale.LOG and rule.worse is not Worse.HIGHER
    return min(0.99, times * rule.margin) if falls else times * rule.margin
