"""Readings of both sides that share a seed, compared in pairs: a seed affects both sides' numbers alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from gates.evidence.readings import Reading, Yardstick
from gates.model.rules import MetricRule, Worse
from gates.stats.comparisons import Comparison, Values, compare

PAIRS = 3
"""Fewer pairs leave one degree of freedom to their differences; that of their runs as two sides rests on two and more,
and is too large where the seed has a part in it, never too small."""

Matched = list[tuple[list[Reading], Reading]]
"""Each of the candidate's readings, in the order of seeds, with those of the baseline that stand against it."""


def match_by_seed(baseline: Sequence[Reading], candidate: Sequence[Reading]) -> Matched | None:
    """Every reading once, with equally many of the baseline's for each seed; None if the seeds do not allow that. Nor
    may the candidate have a seed twice: the names of its runs would then decide which stands against which."""
    left, right = Counter(r.seed for r in baseline), Counter(r.seed for r in candidate)
    each = len(baseline) // len(candidate)
    if None in left or not each or max(right.values()) > 1 or left != Counter(dict.fromkeys(right, each)):
        return None
    ordered = sorted(baseline, key=_by_seed)
    return [(ordered[each * i : each * (i + 1)], r) for i, r in enumerate(sorted(candidate, key=_by_seed))]


def compare_readings(
    rule: MetricRule,
    stick: Yardstick,
    left: list[Reading],
    right: list[Reading],
    beside: bool = False,
    between: float = 0.0,
) -> Comparison:
    """Compare both sides' readings by one rule: in pairs, if the seeds allow it and the two of a pair have something in
    common, namely a seed that the metric follows, or the machine (`beside`: both runs of a seed were made side by
    side). `between`: the variance that sessions add."""
    shared = rule.info.repeatable or beside
    matched = match_by_seed(left, right) if shared and len(right) >= PAIRS else None
    before, now = _in_pairs(stick, matched) if matched else (apart(rule, stick, left), apart(rule, stick, right))
    return compare(
        before,
        now,
        margin=stick.margin,
        prior=stick.prior,
        paired=matched is not None,
        averaged=max(1, len(left) // len(before)),
        two_sided=rule.worse is Worse.BOTH,
        between=between,
    )


def _in_pairs(stick: Yardstick, matched: Matched) -> tuple[Values, Values]:
    """For each seed, the mean of the baseline's readings, and the candidate's reading, both in harm units."""
    means = [math.fsum(stick.harms(runs)) / len(runs) for runs, _ in matched]
    return np.array(means), stick.harms([reading for _, reading in matched])


def apart(rule: MetricRule, stick: Yardstick, readings: Sequence[Reading]) -> Values:
    """One number per run, or per seed if the metric follows its seed: runs of one seed then repeat each other, and
    counting each of them blocked up to 12 % of unchanged sides."""
    groups = by_seeds(readings)
    if not rule.info.repeatable or len(groups) == len(readings):
        return stick.harms(readings)
    alone = [[reading] for reading in groups.pop(None, [])]
    return np.array([math.fsum(stick.harms(runs)) / len(runs) for runs in [*groups.values(), *alone]])


def by_seeds(readings: Sequence[Reading]) -> dict[int | None, list[Reading]]:
    """The readings of each seed; None: those without one."""
    found: dict[int | None, list[Reading]] = {}
    for reading in readings:
        found.setdefault(reading.seed, []).append(reading)
    return found


def _by_seed(reading: Reading) -> tuple[int, str]:
    return reading.seed or 0, reading.run_id
