"""Rare long steps, to which the middle of a run's steps is blind: when they are looked for, and by which number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gates.policy import Policy
from gates.readings import points
from gates.records import Run
from gates.rules import MetricRule, Role
from gates.summaries import SUMMARIES

_TIMES = ("step_time", "iteration_time")


def constant_tokens(policy: Policy, rule: MetricRule, runs: Sequence[Run]) -> float | None:
    """How many tokens a step has after warm-up when all runs agree to a fifth of the margin; None where they do not,
    or none were counted. Then tokens per second are the step time turned over, and judging both counts one twice."""
    means = []
    for run in runs:
        if "tokens" not in run.series:
            return None
        series = run.series["tokens"].finite_only()
        counted = series.values[points(policy, series)[0] :]
        if not len(counted):
            return None
        means.append(float(np.mean(counted)))
    return max(means) if means and max(means) <= (1 + rule.margin / 5) * min(means) else None


def by_all_steps(policy: Policy, rule: MetricRule, baseline: Sequence[Run], candidate: Sequence[Run]) -> MetricRule:
    """The rule of a time that decides, by the mean of all steps where stalls came up and nothing else would see them:
    neither a tail nor tokens per second."""
    counted = any(each.reduction == "rate" and each.role is Role.GATE for each in policy.rules) and all(
        "tokens" in run.series for run in (*baseline, *candidate)
    )
    blind = rule.metric in _TIMES and rule.reduction in ("iqm", "median") and rule.role is Role.GATE
    spacings = [run.series[rule.metric].spacing for run in (*baseline, *candidate) if rule.metric in run.series]
    # Means of several steps beside single ones look like stalls.
    alike = bool(spacings) and max(spacings) < 1.5 * min(spacings)
    if not blind or counted or not alike or not stalls(policy, rule, baseline, candidate, rule.metric):
        return rule
    return replace(rule, reduction="mean")


def stalls(
    policy: Policy,
    rule: MetricRule,
    baseline: Sequence[Run],
    candidate: Sequence[Run],
    metric: str = "step_time",
) -> bool:
    """Whether the mean of the candidate's times rose beside their middle by half the rule's margin: rare long steps, to
    which an IQM is blind. Not where a tail of these times decides by itself."""
    tail = SUMMARIES["tail_excess"]
    sides = [[run.series[metric] for run in side if metric in run.series] for side in (baseline, candidate)]
    gated = any(
        other.reduction == "tail_excess" and other.role is Role.GATE and other.metric == metric
        for other in policy.rules
    )
    shortest = min((len(series.values) - policy.warmup_steps for side in sides for series in side), default=0)
    if not all(sides) or (gated and shortest >= tail.decides_from):
        return False
    excess = [[tail(series, points(policy, series)[0]) for series in side] for side in sides]
    before, now = (math.fsum(side) / len(side) for side in excess)
    return now - before > math.log1p(rule.margin) / 2
