"""Whether a ratio that grew tells of harm: a tail and a drift also grow where what they are divided by has shrunk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gates.matching import compare_readings
from gates.policy import Policy
from gates.readings import read, yardstick
from gates.records import Run
from gates.rules import MetricRule, Role, Scale, Worse
from gates.summaries import SUMMARIES
from gates.wording import change, quantity

SHARE = 0.5
"""Of the ratio's margin, by which its level may be worse: where all of a ratio is harm, its level is that much worse
too, so that at the margin and beyond this seldom speaks."""


def no_harm(policy: Policy, rule: MetricRule, baseline: Sequence[Run], candidate: Sequence[Run]) -> str:
    """Why a ratio's growth is no harm, in one clause: what it speaks of (all steps together, the last third) has been
    shown to be no worse. '' where that is not shown, or the rule is about no ratio."""
    level = SUMMARIES[rule.reduction].level
    if not level or rule.worse is not Worse.HIGHER:
        return ""
    margin = math.expm1(SHARE * rule.margin)
    prior = next((each.prior for each in policy.rules if each.name == rule.metric), rule.prior)
    instead = replace(rule, role=Role.ADVISORY, reduction=level, scale=Scale.LOG, margin=margin, prior=prior)
    left, right = (read(policy, instead, side)[0] for side in (baseline, candidate))
    stick = yardstick(policy, instead, left, right) if left and right else ""
    if isinstance(stick, str):
        return ""
    found = compare_readings(policy, instead, stick, left, right)
    if found.p_noninferior > policy.alpha_pass:
        return ""
    before, now = (quantity(stick.centre(stick.harms(side)), rule.info.unit) for side in (left, right))
    moved = change(stick.change(found.difference), stick.relative, rule.info.unit)
    return f"but nothing takes longer for it: {rule.info.label} ({level}) {before} -> {now} ({moved})"
