"""Which runs of both sides a rule compares: those that are valid for it, in pairs where fresh ones stand beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gates.check_builders import undecided
from gates.pairs import Pairs, judged_in_pairs
from gates.policy import Policy
from gates.records import Run
from gates.rules import MetricRule
from gates.sides import once
from gates.validity import BY_THE_CLOCK, contended, invalid_clocks
from gates.verdict import ReasonCode
from gates.weighing import Weighed, agree, weigh
from gates.wording import listed

DOUBT = "fresh runs of the baseline are as bad here today"


def weigh_selected(
    policy: Policy, rule: MetricRule, left: Sequence[Run], right: Sequence[Run], pairs: Pairs
) -> Weighed:
    """Compare one metric over the runs that are valid for it; `left`: the stored runs of the baseline.

    The machine's speed is judged by fresh ones alone; for everything else they are runs of the baseline like the
    others, unless the two differ.
    """
    if pairs and judged_in_pairs(rule):
        trusted = not contended(policy, pairs.baseline, pairs.candidate)
        return weigh(policy, rule, pairs.baseline, pairs.candidate, trusted=trusted)
    fresh: Sequence[Run] = pairs.beside
    trusted = True
    if rule.metric in BY_THE_CLOCK:
        invalid = invalid_clocks(policy, left, right, fresh)
        left, fresh, right = ([run for run in side if run.run_id not in invalid] for side in (left, fresh, right))
        if invalid and not (left and right):
            empty = "baseline" if right else "candidate"
            what = listed(sorted({reason.what for reason in invalid.values()}))
            reason = f"no {empty} run has a usable clock ({what})"
            return Weighed(rule=rule, check=undecided(rule, reason, ReasonCode.INVALID_ENVIRONMENT))
        trusted = not contended(policy, left, right) and not contended(policy, fresh, ())
    if fresh and not agree(policy, rule, left, fresh):
        weighed = weigh(policy, rule, left, right, trusted=trusted)
        beside = weigh(policy, rule, fresh, right, trusted=trusted).found
        doubt = DOUBT if beside and beside.harm <= beside.margin else ""
        return replace(weighed, doubt=doubt).noting("fresh runs of the baseline differ from its stored ones: left out")
    return weigh(policy, rule, once((*left, *fresh)), right, trusted=trusted)
