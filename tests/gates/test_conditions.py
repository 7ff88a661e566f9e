"""Conditions of the judge that rarely decide: an example on either side of each."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from verdicts import check

from canary_mlflow.gates import Outcome, ReasonCode, Run, Series, Version, judge
from canary_mlflow.gates.hard.hard_gates import divergence
from canary_mlflow.gates.model.rules import Prior, Role
from canary_mlflow.gates.stats.comparisons import compare
from canary_mlflow.gates.stats.power import block_probability

BASELINE = np.array([1.00, 1.02, 0.97, 1.01, 1.03])
CANDIDATE = np.array([1.04, 1.06, 1.03])
FLAT = {"prior": Prior(sd=0.02, df=1e-9, kind="shipped")}


def side(*runs, fresh=()):
    return Version(model="m", version="v", runs=tuple(runs), fresh=tuple(fresh))


def runs_at(make_run, prefix, levels, seeds=None, **fields):
    """Runs whose step times lie at these multiples of the usual."""
    seeds = seeds or [None] * len(levels)
    return [
        make_run(f"{prefix}{at}", seed, factor={"step_time": level}, **fields)
        for at, (level, seed) in enumerate(zip(levels, seeds, strict=True))
    ]


@pytest.mark.parametrize("two_sided", [False, True])
def test_an_interval_lies_inside_the_margin_exactly_where_the_test_passes(two_sided):
    for margin in np.linspace(0.02, 0.12, 41):
        found = compare(BASELINE, CANDIDATE, margin=float(margin), two_sided=two_sided, **FLAT)
        low, high = found.interval(0.05)
        inside = high < margin and (not two_sided or low > -margin)
        assert inside == (found.p_noninferior <= 0.05), margin


def test_what_would_block_lies_beyond_the_margin_too():
    """However sure: harm just at the margin is found beyond it every second time."""
    found = compare(BASELINE, BASELINE[:3], margin=0.2, prior=Prior(sd=0.02, df=4, kind="shipped"))
    assert block_probability(found, found.design, 0.2, 0.01) == pytest.approx(0.5, abs=0.01)
    assert block_probability(found, found.design, 0.3, 0.01) > 0.99


def test_fresh_runs_of_other_work_are_not_compared(asks_fresh, make_run):
    stored, now = (runs_at(make_run, name, (1.0, 1.0, 1.0), (0, 1, 2)) for name in "ab")
    fresh = runs_at(make_run, "f", (1.0, 1.0, 1.0), (0, 1, 2), workload={"algo": "dpo", "max_steps": "99"})
    verdict = judge(asks_fresh, side(*stored, fresh=fresh), side(*now))
    assert verdict.reason_code is ReasonCode.NOT_COMPARABLE


def test_a_small_quiet_rebound_is_no_blow_up():
    """From 3.0 to 0.1 and up to 0.25 is more than twice the lowest, and a twentieth of what was learned."""

    def run(end):
        values = np.concatenate([np.geomspace(3.0, 0.1, 80), np.linspace(0.1, end, 20), np.full(20, end)])
        return Run(run_id="r", seed=0, series={"loss": Series(name="loss", steps=np.arange(1, 121), values=values)})

    assert divergence(run(0.25)) == ""
    assert "ended at 2" in divergence(run(2.0))


def test_what_is_detectable_grows_with_the_rules_that_share_the_level(smoke, make_run):
    """And is never said to be less than the margin."""
    baseline, candidate = runs_at(make_run, "a", (0.94, 1.0, 1.06, 1.02)), runs_at(make_run, "b", (0.95, 1.0, 1.05))

    def size(policy, candidates=candidate):
        return check(judge(policy, side(*baseline), side(*candidates)), "step_time").evidence.smallest_detectable

    smoke = replace(smoke, alpha_block=1e-4)  # so that the level and not the margin sets it
    alone = replace(smoke, rules=tuple(rule for rule in smoke.rules if rule.name == "step_time"))
    assert 0.15 < size(alone) < size(smoke)


def test_what_is_detectable_is_told_at_the_level_that_those_share_which_are_tested(perf, make_run):
    baseline, candidate = runs_at(make_run, "a", (0.98, 1.0, 1.02, 1.007)), runs_at(make_run, "b", (0.983, 1.0, 1.017))
    perf = replace(perf, alpha_block=0.001)  # so that the level and not the margin sets it
    found = judge(perf, side(*baseline), side(*candidate))
    tested = [item.metric for item in found.checks if item.role in (Role.GATE, Role.GUARD) and item.evidence]
    alone = replace(
        perf,
        rules=tuple(rule for rule in perf.rules if rule.name == "step_time"),
        alpha_block=perf.alpha_block * 6 / sum(rule.weight for rule in perf.rules if rule.name in tested),
    )
    one = judge(alone, side(*baseline), side(*candidate))
    told = [check(each, "step_time").evidence.smallest_detectable for each in (found, one)]
    assert told[0] == pytest.approx(told[1], rel=1e-9)


def test_two_candidate_runs_beside_four_of_their_seeds_are_no_pairs(smoke, make_run):
    stored = runs_at(make_run, "a", (0.98, 1.0, 1.02, 1.007), (0, 0, 1, 1))
    now = runs_at(make_run, "b", (1.0, 1.01), (0, 1))
    assert not check(judge(smoke, side(*stored), side(*now)), "step_time").evidence.paired
    assert judge(smoke, side(*stored), side(*now)).outcome is not Outcome.BLOCK
    assert math.isfinite(check(judge(smoke, side(*stored), side(*now)), "step_time").evidence.change)


@pytest.mark.parametrize(("metric", "blocks"), [("entropy", False), ("explained_variance", False), ("kl", True)])
def test_what_may_be_undefined_for_a_step_blocks_nothing(smoke, make_run, metric, blocks):
    values = np.ones(100)
    values[40] = math.nan
    found = judge(smoke, None, side(make_run("a", series_={metric: values})))
    assert (found.outcome is Outcome.BLOCK) is blocks
