"""Readings of both sides that share a seed, compared in pairs: what a seed does to a number, it does to both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.special import fdtri

from gates.comparisons import NO_FLOOR, Comparison, Values, compare
from gates.policy import Policy
from gates.readings import Reading, Yardstick
from gates.rules import MetricRule, Worse
from gates.spreads import AGREEMENT, Squares, squares_of

Matched = list[tuple[list[Reading], Reading]]
"""Each of the candidate's readings, in the order of seeds, with those of the baseline that stand against it."""


def match_by_seed(baseline: Sequence[Reading], candidate: Sequence[Reading]) -> Matched | None:
    """Every reading once, equally many of the baseline's for each seed; None where seeds do not allow that, or the
    candidate has one twice: which of them stands against which would follow from their names."""
    left, right = Counter(r.seed for r in baseline), Counter(r.seed for r in candidate)
    each = len(baseline) // len(candidate)
    if None in left or not each or max(right.values()) > 1 or left != Counter(dict.fromkeys(right, each)):
        return None
    ordered = sorted(baseline, key=_by_seed)
    return [(ordered[each * i : each * (i + 1)], r) for i, r in enumerate(sorted(candidate, key=_by_seed))]


PAIRS = 3
"""Fewer pairs leave one degree of freedom to their differences: see `_pairs_from`."""


def of_shared_seeds(stick: Yardstick, baseline: list[Reading], candidate: list[Reading]) -> list[Reading]:
    """The baseline's readings of the candidate's seeds alone, where it has others besides and those of one seed agree
    far better than runs do (F test, 1 %); else all of them.

    Memory that follows the longest batch, or a loss that a change leaves nearly as it was, are told apart by pairs even
    if not all of the baseline has a partner: left unpaired, unchanged sides stayed open (tests/gates/test_matching.py).
    The test errs less often than it says: its two variances have the differences in common.
    """
    partners = _of_seeds(baseline, candidate)
    matched = match_by_seed(partners, candidate) if len(candidate) >= PAIRS else None
    if matched is None:
        return baseline
    before, now = _in_pairs(stick, matched)
    pairs = squares_of([now - before], 1 + len(candidate) / len(partners))
    return partners if _agree(stick, pairs, baseline, candidate) else baseline


def would_pair(stick: Yardstick, baseline: list[Reading], candidate: list[Reading]) -> bool:
    """True where the candidate has too few runs to be compared in pairs, but these agree with the baseline's of their
    seeds far better than runs do: a plan of looks need not give up what no number of runs would decide unpaired."""
    partners = _of_seeds(baseline, candidate)
    matched = match_by_seed(partners, candidate) if len(candidate) < PAIRS else None
    if matched is None:
        return False
    equally_often = [seed for seed, runs in by_seeds(baseline).items() if len(runs) == len(partners) // len(candidate)]
    if len([seed for seed in equally_often if seed is not None]) < PAIRS:
        return False
    before, now = _in_pairs(stick, matched)
    apart = (now - before) ** 2  # about nothing: one difference has no mean to lie about
    pairs = Squares(total=math.fsum(apart) / (1 + len(candidate) / len(partners)), df=len(apart))
    return _agree(stick, pairs, baseline, candidate)


def _of_seeds(baseline: Sequence[Reading], candidate: Sequence[Reading]) -> list[Reading]:
    seeds = {reading.seed for reading in candidate}
    return [reading for reading in baseline if reading.seed in seeds]


def _agree(stick: Yardstick, pairs: Squares, baseline: Sequence[Reading], candidate: Sequence[Reading]) -> bool:
    runs = squares_of([stick.harms(baseline), stick.harms(candidate)])
    return pairs.variance < runs.variance * float(fdtri(pairs.df, runs.df, AGREEMENT))


def compare_readings(
    policy: Policy,
    rule: MetricRule,
    stick: Yardstick,
    left: list[Reading],
    right: list[Reading],
    trusted: bool = True,
) -> Comparison:
    """Compare what both sides' runs say by one rule, in pairs where their seeds allow it."""
    matched = match_by_seed(left, right) if len(right) >= _pairs_from(rule, left, right) else None
    # Runs of one seed see the same data in the same order: the wobble of such a series is shared, no noise
    # of a pair.
    shared = matched is not None and rule.info.repeatable
    floor = NO_FLOOR if shared else stick.floor(left, right)
    known = policy.prior_of(rule)
    sides = _in_pairs(stick, matched) if matched else (_apart(rule, stick, left), _apart(rule, stick, right))
    alone = matched is not None or (len(sides[0]), len(sides[1])) == (len(left), len(right))
    return compare(
        *sides,
        margin=stick.margin,
        prior=stick.prior,
        prior_df=known.df,
        planned=stick.planned,
        floor=floor,
        widened=known.kind == "shipped",  # what runs wobble inside, a measured one has in it already
        paired=matched is not None,
        averaged=max(1, len(left) // len(sides[0])),
        sums=not rule.info.repeatable,
        exchangeable=alone,
        two_sided=rule.worse is Worse.BOTH,
        trusted=trusted,
    )


def _pairs_from(rule: MetricRule, left: Sequence[Reading], right: Sequence[Reading]) -> int:
    """How many pairs there must be to compare in pairs. The spread of two rests on one degree of freedom, which blocked
    harm of three margins in every second case only; that of their runs as two sides rests on two and more, and is too
    large where the seed has a part in it, never too small. Two that were made beside each other share a machine too.
    """
    return PAIRS if rule.info.repeatable or len(left) > len(right) else 2


def _in_pairs(stick: Yardstick, matched: Matched) -> tuple[Values, Values]:
    """The mean of the baseline's readings of each seed, and the candidate's."""
    means = [math.fsum(stick.harms(runs)) / len(runs) for runs, _ in matched]
    return np.array(means), stick.harms([reading for _, reading in matched])


def _apart(rule: MetricRule, stick: Yardstick, readings: Sequence[Reading]) -> Values:
    """One number for each run, or for each seed where a metric follows its seed: runs of one seed then say one thing,
    and counting each blocked up to 12 % of unchanged sides."""
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
