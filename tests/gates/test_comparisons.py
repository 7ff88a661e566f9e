"""The tests themselves: against scipy where the prior has no weight, by hand where it has; and the planning."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from canary_mlflow.gates.model.rules import Prior
from canary_mlflow.gates.stats import comparisons
from canary_mlflow.gates.stats.comparisons import BY_MEANS, BY_MEDIAN, Design, cautious, compare, moderate
from canary_mlflow.gates.stats.power import (
    block_probability,
    pass_probability,
    runs_needed,
    smallest_detectable,
    upper_tail,
)

BASELINE = np.array([1.00, 1.02, 0.97, 1.01, 1.03])
CANDIDATE = np.array([1.10, 1.14, 1.09])


def prior(sd, df=4.0):
    return Prior(sd=sd, df=df, kind="shipped")


KNOWN = prior(0.02)
NOTHING_KNOWN = prior(0.02, 1e-9)


def test_without_a_prior_it_is_students_t_test():
    found = compare(BASELINE, CANDIDATE, margin=0.05, prior=NOTHING_KNOWN)
    expected = stats.ttest_ind(CANDIDATE, BASELINE, alternative="greater")
    assert found.p_harm == pytest.approx(expected.pvalue / BY_MEANS, rel=1e-6)
    shifted = stats.ttest_ind(CANDIDATE - 0.05, BASELINE, alternative="less", equal_var=False)
    assert found.p_noninferior == pytest.approx(shifted.pvalue, rel=1e-6)
    interval = stats.ttest_ind(CANDIDATE, BASELINE, equal_var=False).confidence_interval(0.90)
    assert found.interval(0.05) == pytest.approx(tuple(interval), rel=1e-6)


def test_paired_without_a_prior_it_is_the_paired_t_test():
    found = compare(BASELINE[:3], CANDIDATE, margin=0.05, paired=True, prior=NOTHING_KNOWN)
    expected = stats.ttest_rel(CANDIDATE, BASELINE[:3], alternative="greater")
    assert found.p_harm == pytest.approx(expected.pvalue / BY_MEANS, rel=1e-6)


def test_moderated_variance_by_hand():
    # SS = 0.5 + 0.5 with df 2, the prior variance 0.25 worth 4: (4 * 0.25 + 1) / 6; noisier than the prior, the runs
    # stand alone for PASS: 1 / 2.
    found = compare(np.array([0.0, 1.0]), np.array([2.0, 3.0]), margin=1.0, prior=prior(0.5))
    assert (found.spread.variance, found.spread.df) == (pytest.approx(1 / 3), 6)
    assert found.error(found.spread) == pytest.approx(math.sqrt(1 / 3))
    assert (found.cautious.variance, found.cautious.df) == (pytest.approx(0.5), 2)
    assert found.p_harm == pytest.approx(stats.t.sf(2 / math.sqrt(1 / 3), 6) / BY_MEANS)


def test_the_typical_difference_beside_three_times_the_prior_blocks_whatever_one_odd_run_says():
    spread, odd = np.array([0.0, 0.01, -0.01, 0.0, -0.6]), np.array([0.21, 0.2, 0.22])
    found = compare(spread, odd, margin=0.14, prior=KNOWN)
    assert found.typical == pytest.approx(0.21)
    usual = math.hypot(0.015, 0.01) / math.sqrt(2) / 0.9539  # what any two runs of a side differ by in the middle
    assert found.usual == pytest.approx(usual, rel=1e-4)
    noisier = math.hypot(3 * 0.02, usual) * math.sqrt(math.pi / 3) * math.sqrt(8 / 15)
    assert found.p_harm == pytest.approx(stats.norm.sf(0.21 / noisier) / BY_MEDIAN, rel=1e-3)
    assert found.p_harm < 0.01
    lone = compare(spread[:4], np.array([0.0, 0.01, 0.7]), margin=0.14, prior=KNOWN)
    assert lone.p_harm > 0.05, "one run of three is no harm by the others"
    wild = compare(np.array([0.0, 0.5, -0.5, 0.3, -0.4]), np.array([0.2, 0.6, 0.1]), margin=0.14, prior=KNOWN)
    assert wild.usual > 3 * KNOWN.sd
    assert wild.p_harm > 0.05


def test_a_step_after_which_one_run_of_three_is_as_fast_as_before_blocks():
    """In one of hyper's histories: such a step has the SD of its runs, not their median difference, beside it."""
    equal, slower = np.array([0.0, -0.001, 0.006, 0.004, 0.004]), np.log([0.999, 1.33, 1.29])
    found = compare(equal, slower, margin=0.1, prior=KNOWN)
    assert found.usual == pytest.approx(math.sqrt(comparisons.squares_of([equal, slower])[0] / 6))
    assert found.p_harm < 0.005
    assert compare(equal, np.log([0.999, 1.22, 1.18]), margin=0.1, prior=KNOWN).p_harm > 0.01, "so may a machine"
    assert compare(equal, np.full(3, 0.25), margin=0.1, prior=KNOWN).p_harm < 0.001, "all three are slower"


def test_the_spread_of_pairs_is_that_of_one_run():
    found = compare(np.array([0.0, 5.0]), np.array([1.0, 6.0]), margin=1.0, prior=prior(0.5), paired=True)
    assert found.spread.variance == pytest.approx(4 * 0.25 / 5)  # no spread of the differences: prior only
    assert found.error(found.spread) == pytest.approx(math.sqrt(2 * found.spread.variance / 2))
    assert found.typical == 1.0


def test_one_run_a_side_rests_on_the_prior_alone():
    found = compare(np.array([1.0]), np.array([1.1]), margin=0.15, prior=KNOWN)
    assert found.spread.variance == pytest.approx(0.02**2)
    assert found.sides == ()


def test_a_prior_gives_way_smoothly_where_runs_contradict_it():
    weights = [moderate(6 * times**2, 6, prior(1.0)).prior_df for times in (1, 2, 2.001, 4, 20)]
    assert weights == pytest.approx([4, 4, 4, 1, 0.04], abs=0.01)
    assert cautious(6 * 1.01, 6, prior(1.0)).prior_df == 0
    assert moderate(0.0, 0, prior(1.0)).df == 4


@pytest.mark.parametrize("truth", [0.02, 0.04])
def test_a_prior_smaller_than_the_truth_lets_no_more_pass_at_the_margin(truth):
    rng, passed = np.random.default_rng(11), 0
    for _ in range(2000):
        baseline, candidate = rng.normal(0, truth, 4), rng.normal(0.05, truth, 4)
        passed += compare(baseline, candidate, margin=0.05, prior=KNOWN, paired=True).p_noninferior <= 0.05
    assert passed / 2000 <= 0.05 + 0.01  # two standard errors of such a share


@pytest.mark.parametrize(("baseline", "candidate"), [(5, 3), (2, 2), (3, 2), (5, 5)])
def test_a_prior_half_as_large_as_the_truth_calls_no_more_unchanged_sides_worse_than_twice_the_level(
    baseline, candidate
):
    rng, blocked = np.random.default_rng(13), 0
    for _ in range(2000):
        sides = rng.normal(0, 0.04, baseline), rng.normal(0, 0.04, candidate)
        blocked += compare(*sides, margin=0.05, prior=KNOWN).p_harm <= 0.006
    assert blocked / 2000 <= 0.015


def test_a_prior_that_gives_way_halves_the_false_blocks_where_it_is_a_tenth_of_the_truth(monkeypatch):
    rng = np.random.default_rng(14)
    drawn = [(rng.normal(0, 0.2, 2), rng.normal(0, 0.2, 2)) for _ in range(2000)]

    def blocked() -> float:
        return float(np.mean([compare(*sides, margin=0.02, prior=KNOWN).p_harm <= 0.01 for sides in drawn]))

    gives_way = blocked()
    monkeypatch.setattr(comparisons, "TOLD", math.inf)
    assert gives_way < 0.05
    assert blocked() > 1.6 * gives_way


@pytest.mark.parametrize(("baseline", "candidate"), [(5, 3), (8, 3), (5, 5)])
def test_candidate_runs_twice_as_noisy_pass_at_the_margin_no_more_often(baseline, candidate):
    rng, passed = np.random.default_rng(12), 0
    for _ in range(2000):
        sides = rng.normal(0, 0.02, baseline), rng.normal(0.05, 0.04, candidate)
        passed += compare(*sides, margin=0.05, prior=KNOWN).p_noninferior <= 0.05
    assert passed / 2000 <= 0.062


def test_two_sided_harm_counts_both_ways_and_doubles_the_p_values():
    up = compare(BASELINE, CANDIDATE, margin=0.05, prior=KNOWN)
    both = compare(BASELINE, CANDIDATE, margin=0.05, prior=KNOWN, two_sided=True)
    down = compare(-BASELINE, -CANDIDATE, margin=0.05, prior=KNOWN, two_sided=True)
    assert both.p_harm == pytest.approx(2 * up.p_harm)
    assert both.harm == pytest.approx(down.harm)
    assert both.p_harm == pytest.approx(down.p_harm)


@given(margin=st.floats(0, 0.5), shift=st.floats(-0.5, 0.5), alpha=st.floats(0.001, 0.2), two_sided=st.booleans())
def test_the_interval_is_inside_the_margin_exactly_when_the_test_passes(margin, shift, alpha, two_sided):
    found = compare(BASELINE, BASELINE[:4] + shift, margin=margin, prior=KNOWN, two_sided=two_sided)
    low, high = found.interval(alpha)
    inside = max(high, -low) < margin if two_sided else high < margin
    if abs(found.p_noninferior - alpha) > 1e-9:
        assert inside == (found.p_noninferior < alpha)


@given(st.permutations(range(5)), st.permutations(range(3)))
def test_order_changes_no_bit(left, right):
    plain = compare(BASELINE, CANDIDATE, margin=0.05, prior=KNOWN)
    assert compare(BASELINE[left], CANDIDATE[right], margin=0.05, prior=KNOWN) == plain


@pytest.mark.parametrize("df", [2, 4, 8, 20])
@pytest.mark.parametrize("shift", [-3.0, 0.0, 1.0, 3.0, 5.0, 20.0, 50.0])
def test_noncentral_t(df, shift):
    critical = stats.t.ppf(0.99, df)
    assert upper_tail(shift, critical, df) == pytest.approx(stats.nct.sf(critical, df, shift), abs=1e-6)


@pytest.mark.parametrize(("runs", "effect", "power"), [(20, 0.5, 0.463), (17, 1.0, 0.887), (10, 1.5, 0.943)])
def test_power_of_a_t_test_is_that_of_the_tables(runs, effect, power):
    # One-sided 5 %, two samples: non-centrality effect * sqrt(n / 2), checked by 10^6 simulated t tests.
    df, shift = 2 * runs - 2, effect * math.sqrt(runs / 2)
    assert upper_tail(shift, stats.t.ppf(0.95, df), df) == pytest.approx(power, abs=0.002)


def test_runs_needed_is_the_first_design_with_the_power_and_none_when_hopeless():
    found = compare(np.array([0.0, 0.05, -0.05]), np.array([0.01, 0.06, -0.04]), margin=0.14, prior=prior(0.05))
    needed = runs_needed(found, truth=0.0, alpha_pass=0.05, alpha_block=0.0025, least=1)
    assert needed is not None
    assert pass_probability(found, found.design.grown(needed), 0.0, 0.05) >= 0.8
    assert pass_probability(found, found.design.grown(needed - 1), 0.0, 0.05) < 0.8
    assert runs_needed(found, truth=0.139, alpha_pass=0.05, alpha_block=0.0025, least=1) is None
    assert runs_needed(found, truth=0.5, alpha_pass=0.05, alpha_block=0.0025, least=3) == 3


def test_the_smallest_detectable_harm_is_blocked_four_times_of_five():
    found = compare(BASELINE, BASELINE[:3] + 0.001, margin=0.05, prior=prior(0.0245))
    harm = smallest_detectable(found, 0.01)
    assert block_probability(found, found.design, harm, 0.01) == pytest.approx(0.8, abs=0.01)
    rng = np.random.default_rng(2)
    sides = ((rng.normal(0, 0.0245, 5), rng.normal(harm, 0.0245, 3)) for _ in range(600))
    blocked = np.mean([compare(*side, margin=0.05, prior=prior(0.0245)).p_harm <= 0.01 for side in sides])
    assert blocked == pytest.approx(0.8, abs=0.06)


def test_margin_zero_and_equal_values_divide_by_nothing():
    same = np.full(3, 0.5)
    found = compare(same, same, margin=0.0, prior=KNOWN)
    assert found.p_harm == 1.0, "nothing is beyond the margin"
    assert runs_needed(found, truth=0.0, alpha_pass=0.05, alpha_block=0.01, least=1) is None
    assert math.isfinite(smallest_detectable(found, 0.01))


def test_design_information():
    assert Design(baseline_runs=5, candidate_runs=3, paired=False).information == pytest.approx(15 / 8)
    assert Design(baseline_runs=3, candidate_runs=3, paired=True).information == pytest.approx(3 / 2)
    assert Design(baseline_runs=3, candidate_runs=3, paired=True, averaged=2).information == pytest.approx(3 / 1.5)


@pytest.mark.filterwarnings("error")
def test_a_spread_that_no_float_holds_shows_nothing_and_warns_nobody():
    far = compare(np.array([0.0, 1e300]), np.array([-1e300, 0.0, 1e300]), margin=1.0, prior=prior(0.3))
    assert far.p_harm > 0.05
    assert far.p_noninferior > 0.05
