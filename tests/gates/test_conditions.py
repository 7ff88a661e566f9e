"""Conditions of the judge that decide seldom: for each an example on either side of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from verdicts import check

from gates import Outcome, ReasonCode, Run, Series, Version, judge
from gates.comparisons import compare
from gates.divergence import divergence
from gates.planning import block_probability
from gates.policy import KnownPriors
from gates.priors import Prior
from gates.rules import Role, Scale
from gates.validity import invalid_clocks, superseded
from gates.weighing import agree

BASELINE = np.array([1.00, 1.02, 0.97, 1.01, 1.03])
CANDIDATE = np.array([1.04, 1.06, 1.03])
FLAT = {"prior": 0.02, "prior_df": 1e-9}


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


def test_order_is_half_as_telling_where_both_directions_are_harm():
    one, both = (compare(BASELINE[:3], CANDIDATE, margin=0.05, two_sided=two, **FLAT) for two in (False, True))
    assert (one.chance_of_order, both.chance_of_order) == (1 / 20, 2 / 20)


def test_what_would_block_lies_beyond_the_margin_too():
    """However sure: harm just at the margin is found beyond it every second time."""
    found = compare(BASELINE, BASELINE[:3], margin=0.2, **FLAT)
    assert block_probability(found, found.design, 0.2, 0.01) == pytest.approx(0.5, abs=0.01)
    assert block_probability(found, found.design, 0.3, 0.01) > 0.99


def test_a_clock_is_held_to_the_middle_of_those_beside_it(smoke, make_run):
    clocks = [
        make_run(f"r{at}", series_={"gpu_clock": np.full(100, mhz)}) for at, mhz in enumerate((1000, 1000, 1000, 1060))
    ]
    assert invalid_clocks(smoke, clocks, ()) == {}
    slow = make_run("r4", series_={"gpu_clock": np.full(100, 900.0)})
    assert list(invalid_clocks(smoke, [*clocks, slow], ())) == ["r4"]


def test_a_fresh_run_that_was_contended_and_made_again_does_not_count(smoke, make_run):
    def kernel(seconds):
        return {"sentinel_time": np.full(100, seconds)}

    stored, now = ([make_run(f"{name}{seed}", seed, series_=kernel(1.0)) for seed in range(3)] for name in "ab")
    fresh = [make_run("f0", 0, series_=kernel(1.4)), make_run("f0x", 0, series_=kernel(1.0))]
    assert list(superseded(smoke, stored, now, fresh)) == ["f0"]
    nameless = [make_run("f1", None, series_=kernel(1.4)), make_run("f1x", None, series_=kernel(1.0))]
    assert superseded(smoke, stored, now, nameless) == {}, "without seeds none stands for another"


@pytest.mark.parametrize(("level", "agrees"), [(1.0, True), (1.12, False), (0.89, False)])
def test_stored_and_fresh_runs_agree_or_not_in_either_direction(smoke, make_run, level, agrees):
    rule = next(rule for rule in smoke.rules if rule.name == "step_time")
    stored = runs_at(make_run, "a", (0.99, 1.0, 1.01))
    fresh = runs_at(make_run, "f", (0.99 * level, level, 1.01 * level))
    assert agree(smoke, rule, stored, fresh) is agrees


def test_fresh_runs_of_other_work_are_not_compared(smoke, make_run):
    stored, now = (runs_at(make_run, name, (1.0, 1.0, 1.0), (0, 1, 2)) for name in "ab")
    fresh = runs_at(make_run, "f", (1.0, 1.0, 1.0), (0, 1, 2), workload={"algo": "dpo", "max_steps": "99"})
    verdict = judge(smoke, side(*stored, fresh=fresh), side(*now))
    assert verdict.reason_code is ReasonCode.NOT_COMPARABLE


def test_a_small_quiet_rebound_is_no_blow_up(smoke):
    """From 3.0 to 0.1 and up to 0.25 is more than twice the lowest, and a twentieth of what was learned."""

    def run(end):
        values = np.concatenate([np.geomspace(3.0, 0.1, 80), np.linspace(0.1, end, 20), np.full(20, end)])
        return Run(run_id="r", seed=0, series={"loss": Series(name="loss", steps=np.arange(1, 121), values=values)})

    assert divergence(smoke.hard, run(0.25)) == ""
    assert "blew up to 2" in divergence(smoke.hard, run(2.0))


@pytest.mark.parametrize(("seeds", "outcome"), [((0, 1, 2, 3, 4), "BLOCK"), ((0, 1, 2, 3, 4, 4), "INCONCLUSIVE")])
def test_the_order_of_runs_shows_harm_where_each_number_is_of_one_run(smoke, make_run, seeds, outcome):
    """Five numbers and five, too noisy for a t test: one that is the mean of two lies nearer to the middle."""

    def version(name, seeds, losses):
        made = (make_run(f"{name}{i}", s, series_={"eval_loss": [losses[i]]}) for i, s in enumerate(seeds))
        return side(*made)

    before = version("a", seeds, (0.30, 0.50, 0.60, 0.55, 0.40, 0.42))
    now = version("b", range(10, 15), (0.70, 1.40, 0.90, 2.00, 1.10))
    assert check(judge(smoke, before, now), "eval_loss").outcome == outcome


def test_what_is_detectable_grows_with_the_rules_that_share_the_level(smoke, make_run):
    """And is never said to be less than the margin, nor at all where runs are too noisy to block."""
    baseline, candidate = runs_at(make_run, "a", (0.94, 1.0, 1.06, 1.02)), runs_at(make_run, "b", (0.95, 1.0, 1.05))

    def size(policy, candidates=candidate):
        return check(judge(policy, side(*baseline), side(*candidates)), "step_time").evidence.smallest_detectable

    alone = replace(smoke, rules=tuple(rule for rule in smoke.rules if rule.name == "step_time"))
    assert 0.15 < size(alone) < size(smoke)
    assert size(smoke, runs_at(make_run, "c", (0.5, 1.0, 2.0))) is None


def test_what_is_detectable_is_told_at_the_level_that_those_share_which_are_tested(perf, make_run):
    """Tokens per second among them, a series that no run records."""
    baseline, candidate = runs_at(make_run, "a", (0.98, 1.0, 1.02, 1.007)), runs_at(make_run, "b", (0.983, 1.0, 1.017))
    perf = replace(perf, alpha_block=0.001)  # so that the level and not the margin sets it
    found = judge(perf, side(*baseline), side(*candidate))
    tested = [item.metric for item in found.checks if item.role is Role.GATE and item.evidence]
    assert "tokens_per_second" in tested
    alone = replace(
        perf,
        rules=tuple(rule for rule in perf.rules if rule.name == "step_time"),
        alpha_block=perf.alpha_block / len(tested),
    )
    one = judge(alone, side(*baseline), side(*candidate))
    told = [check(each, "step_time").evidence.smallest_detectable for each in (found, one)]
    assert told[0] == pytest.approx(told[1], rel=1e-9)


def test_a_measured_prior_has_the_wobble_of_steps_in_it_already(smoke, make_run):
    def width(kind):
        prior = Prior(sd=0.02, df=4.0, kind=kind)
        known = KnownPriors(name="here", when={}, rules={"step_time": (prior, "iqm", Scale.LOG)})
        noisy = [
            [make_run(f"{name}{at}", series_={"step_time": wild(10 * ord(name) + at)}) for at in range(2)]
            for name in "ab"
        ]
        verdict = judge(replace(smoke, priors=(known,)), side(*noisy[0]), side(*noisy[1]))
        found = check(verdict, "step_time").evidence
        return found.change_high - found.change_low

    def wild(number):
        return 0.02 * np.exp(np.random.default_rng(number).normal(0, 0.15, 100))

    assert width("shipped") > width("calibrated")


def test_two_candidate_runs_beside_four_of_their_seeds_are_no_pairs(smoke, make_run):
    stored = runs_at(make_run, "a", (0.98, 1.0, 1.02, 1.007), (0, 0, 1, 1))
    now = runs_at(make_run, "b", (1.0, 1.01), (0, 1))
    assert not check(judge(smoke, side(*stored), side(*now)), "step_time").evidence.paired
    assert check(judge(smoke, side(*stored[::2]), side(*now)), "step_time").evidence.paired
    assert judge(smoke, side(*stored), side(*now)).outcome is not Outcome.BLOCK
    assert math.isfinite(check(judge(smoke, side(*stored), side(*now)), "step_time").evidence.change)


@pytest.mark.parametrize(("metric", "blocks"), [("entropy", False), ("explained_variance", False), ("kl", True)])
def test_what_may_be_undefined_for_a_step_blocks_nothing(smoke, make_run, metric, blocks):
    values = np.ones(100)
    values[40] = math.nan
    found = judge(smoke, None, side(make_run("a", series_={metric: values})))
    assert (found.outcome is Outcome.BLOCK) is blocks
