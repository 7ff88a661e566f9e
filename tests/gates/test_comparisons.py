"""The test itself: against scipy where the prior has no weight, by hand where it has; and the planning."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gates.comparisons import compare, holm
from gates.design import Design
from gates.planning import block_probability, pass_probability, runs_needed, smallest_detectable, upper_tail
from gates.spreads import Floor, Squares, moderate, squares_of

BASELINE = np.array([1.00, 1.02, 0.97, 1.01, 1.03])
CANDIDATE = np.array([1.10, 1.14, 1.09])
NO_PRIOR = {"prior": 0.02, "prior_df": 1e-9}


def test_without_a_prior_it_is_students_t_test():
    found = compare(BASELINE, CANDIDATE, margin=0.05, **NO_PRIOR)
    expected = stats.ttest_ind(CANDIDATE, BASELINE, alternative="greater")
    assert found.p_harm == pytest.approx(expected.pvalue, rel=1e-6)
    shifted = stats.ttest_ind(CANDIDATE - 0.05, BASELINE, alternative="less")
    assert found.p_noninferior == pytest.approx(shifted.pvalue, rel=1e-6)
    low, high = stats.ttest_ind(CANDIDATE, BASELINE).confidence_interval(0.90)
    assert found.interval(0.05) == pytest.approx((low, high), rel=1e-6)


def test_paired_without_a_prior_it_is_the_paired_t_test():
    found = compare(BASELINE[:3], CANDIDATE, margin=0.05, paired=True, **NO_PRIOR)
    expected = stats.ttest_rel(CANDIDATE, BASELINE[:3], alternative="greater")
    assert found.p_harm == pytest.approx(expected.pvalue, rel=1e-6)


def test_moderated_variance_by_hand():
    # SS = 0.5 + 0.5 with df 2; the prior variance 0.25, worth 4, counts a quarter of 2 for BLOCK:
    # (0.5 * 0.25 + 1) / 2.5 = 0.45 = SE^2; for PASS, runs noisier than it stand alone: 1 / 2.
    found = compare(np.array([0.0, 1.0]), np.array([2.0, 3.0]), margin=1.0, prior=0.5, prior_df=4)
    assert found.spread.variance == pytest.approx(0.45)
    assert found.spread.df == 2.5
    assert found.standard_error == pytest.approx(math.sqrt(0.45))
    assert found.p_harm == pytest.approx(stats.t.sf(2 / math.sqrt(0.45), 2.5))
    assert (found.cautious.variance, found.cautious.df) == (pytest.approx(0.5), 2)


def test_for_pass_calmer_runs_are_moderated_with_all_that_the_prior_is_worth():
    found = compare(np.array([0.0, 0.1]), np.array([0.0, 0.1]), margin=1.0, prior=0.5, prior_df=4)
    assert found.cautious.variance == pytest.approx((4 * 0.25 + 0.01) / 6)
    assert found.cautious.df == 6


def test_the_spread_of_pairs_is_that_of_one_run():
    found = compare(np.array([0.0, 5.0]), np.array([1.0, 6.0]), margin=1.0, prior=0.5, prior_df=4, paired=True)
    assert found.spread.variance == pytest.approx(0.25 * 0.25 / 1.25)  # no spread of the differences: prior only
    assert found.standard_error == pytest.approx(math.sqrt(2 * found.spread.variance / 2))  # of two runs, two pairs


def test_one_run_a_side_rests_on_the_prior_alone():
    found = compare(np.array([1.0]), np.array([1.1]), margin=0.15, prior=0.02, prior_df=4)
    assert found.spread.variance == pytest.approx(0.02**2)
    assert found.standard_error == pytest.approx(0.02 * math.sqrt(2))


def test_a_prior_that_the_data_contradict_is_dropped():
    limit = stats.f.ppf(0.99, 2, 4)
    kept = moderate(Squares(total=2 * 0.999 * limit, df=2), 1.0, 4)
    dropped = moderate(Squares(total=2 * 1.001 * limit, df=2), 1.0, 4)
    assert kept.prior_df == 4
    assert kept.df == 6
    assert dropped.prior_df == 0
    assert dropped.df == 2
    assert dropped.variance == pytest.approx(1.001 * limit)
    assert moderate(Squares(total=1e6, df=1), 1.0, 4).prior_df == 4  # one degree of freedom contradicts nothing


@pytest.mark.parametrize("truth", [0.02, 0.03, 0.04])
def test_a_prior_smaller_than_the_truth_lets_no_more_pass_at_the_margin(truth):
    rng, passed, with_the_prior = np.random.default_rng(11), 0, 0
    for _ in range(8000):
        baseline, candidate = rng.normal(0, truth, 4), rng.normal(0.05, truth, 4)
        found = compare(baseline, candidate, margin=0.05, prior=0.02, prior_df=4, paired=True)
        passed += found.p_noninferior <= 0.05
        spread = moderate(squares_of([candidate - baseline], 2.0), 0.02**2, 4)
        t = (found.difference - found.margin) / found.design.error(spread)
        with_the_prior += stats.t.cdf(t, spread.df) <= 0.05
    assert passed / 8000 <= 0.05 + 0.005  # two standard errors of such a share
    assert truth == 0.02 or with_the_prior / 8000 > 0.07


@pytest.mark.parametrize(("baseline", "candidate"), [(5, 3), (2, 2), (3, 2), (5, 5)])
def test_a_prior_half_as_large_as_the_truth_calls_no_more_unchanged_sides_worse_than_the_level(baseline, candidate):
    rng, blocked = np.random.default_rng(13), 0
    for _ in range(6000):
        sides = rng.normal(0, 0.04, baseline), rng.normal(0, 0.04, candidate)
        found = compare(*sides, margin=0.05, prior=0.02, prior_df=4)
        blocked += found.harm > found.margin and found.p_harm <= 0.002 and found.shows_harm(0.01)
    assert blocked / 6000 <= 0.004  # the level of one metric of five is 0.2 %, and each is a quarter of the noise


@pytest.mark.parametrize(("baseline", "candidate", "most"), [(5, 3, 0.10), (8, 3, 0.13), (5, 5, 0.06)])
def test_few_candidate_runs_twice_as_noisy_pass_more_often_as_the_docs_say(baseline, candidate, most):
    rng, passed = np.random.default_rng(12), 0
    for _ in range(3000):
        sides = rng.normal(0, 0.02, baseline), rng.normal(0.05, 0.04, candidate)
        passed += compare(*sides, margin=0.05, prior=0.02, prior_df=4).p_noninferior <= 0.05
    assert passed / 3000 <= most


def test_spread_between_runs_is_never_believed_below_that_within():
    found = compare(BASELINE, CANDIDATE, margin=0.05, prior=0.001, prior_df=4, floor=Floor(variance=0.04**2))
    assert found.standard_error == pytest.approx(0.04 * math.sqrt(1 / 5 + 1 / 3))
    for spread in (found.spread, found.cautious, found.expected):
        assert spread.variance == pytest.approx(0.04**2)


@pytest.mark.parametrize(("widened", "variance"), [(True, 0.02**2 + 0.03**2), (False, 0.03**2)])
def test_a_shipped_prior_is_widened_by_what_runs_wobble_inside_and_a_measured_one_has_it(widened, variance):
    known = {"prior_df": 4, "floor": Floor(variance=0.03**2), "widened": widened}
    found = compare(np.array([1.0]), np.array([1.1]), margin=0.15, prior=0.04, planned=0.02, **known)
    assert found.expected.variance == pytest.approx(variance)
    found = compare(np.array([1.0]), np.array([1.1]), margin=0.15, prior=0.02, **known)
    for spread in (found.spread, found.cautious, found.expected):
        assert spread.variance == pytest.approx(variance)


def test_what_wobbles_inside_runs_that_agree_far_better_is_no_noise():
    wobbling = {"floor": Floor(variance=1.0, recurring=True), "widened": True}
    found = compare(BASELINE, CANDIDATE, margin=0.05, prior=0.02, prior_df=4, **wobbling)
    assert found.scheduled
    assert found.standard_error == compare(BASELINE, CANDIDATE, margin=0.05, prior=0.02, prior_df=4).standard_error
    # What wobbles once in a run may be chance in each.
    assert not compare(BASELINE, CANDIDATE, margin=0.05, prior=0.02, prior_df=4, floor=Floor(variance=1.0)).scheduled
    # Where the spread is as large as what wobbles, not to count that changes nothing.
    assert not compare(BASELINE, CANDIDATE, margin=0.05, prior=3.0, prior_df=4, **wobbling).scheduled
    # One run a side cannot disagree with what wobbles inside it.
    alone = compare(
        BASELINE[:1],
        CANDIDATE[:1],
        margin=0.05,
        prior=0.02,
        prior_df=4,
        floor=Floor(variance=1.0, recurring=True),
        widened=True,
    )
    assert not alone.scheduled
    assert alone.standard_error > 1.0


@pytest.mark.parametrize("df", [2, 6, 8])
def test_true_noise_is_seldom_taken_for_a_schedule(df):
    floor, totals = Floor(variance=1.0, recurring=True), np.random.default_rng(5).chisquare(df, 20_000)
    dropped = np.mean([not floor.beneath(Squares(total=total, df=df)) for total in totals])
    assert dropped == pytest.approx(0.01, abs=0.002)


def test_two_sided_harm_counts_both_ways_and_doubles_the_p_values():
    up = compare(BASELINE, CANDIDATE, margin=0.05, prior=0.02, prior_df=4)
    both = compare(BASELINE, CANDIDATE, margin=0.05, prior=0.02, prior_df=4, two_sided=True)
    down = compare(-BASELINE, -CANDIDATE, margin=0.05, prior=0.02, prior_df=4, two_sided=True)
    assert both.p_harm == pytest.approx(2 * up.p_harm)
    assert both.p_beyond == pytest.approx(2 * up.p_beyond)
    assert both.harm == pytest.approx(down.harm)
    assert both.p_harm == pytest.approx(down.p_harm)


@given(margin=st.floats(0, 0.5), shift=st.floats(-0.5, 0.5), alpha=st.floats(0.001, 0.2), two_sided=st.booleans())
def test_the_interval_is_inside_the_margin_exactly_when_the_test_passes(margin, shift, alpha, two_sided):
    found = compare(BASELINE, BASELINE[:4] + shift, margin=margin, prior=0.02, prior_df=4, two_sided=two_sided)
    low, high = found.interval(alpha)
    inside = max(high, -low) < margin if two_sided else high < margin
    if abs(found.p_noninferior - alpha) > 1e-9:
        assert inside == (found.p_noninferior < alpha)


@given(st.permutations(range(5)), st.permutations(range(3)))
def test_order_changes_no_bit(left, right):
    plain = compare(BASELINE, CANDIDATE, margin=0.05, prior=0.02, prior_df=4)
    assert compare(BASELINE[left], CANDIDATE[right], margin=0.05, prior=0.02, prior_df=4) == plain


@pytest.mark.parametrize(
    ("p_values", "rejected"),
    [
        (
            [0.01, 0.04, 0.03, 0.005],
            [True, False, False, True],
        ),  # Holm 1979 at 5 %: .0125, .0167, then .03 > .025
        ([0.001], [True]),
        ([0.04, 0.04], [False, False]),
        ([0.025, 0.05], [True, True]),
        ([], []),
    ],
)
def test_holm(p_values, rejected):
    assert holm(p_values, 0.05) == rejected


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


NOISY = np.array([0.0, 0.4, -0.3, 0.5, -0.4])


def test_where_it_is_too_noisy_only_the_order_of_the_runs_shows_harm():
    far = compare(NOISY, NOISY + 2.0, margin=0.1, prior=0.02, prior_df=4)
    assert far.too_noisy
    assert far.separated
    assert far.chance_of_order == pytest.approx(1 / 252)
    assert far.shows_harm(0.01)
    assert not compare(NOISY, NOISY[:3] + 2.0, margin=0.1, prior=0.02, prior_df=4).shows_harm(0.01), "1/56"
    assert not compare(NOISY, NOISY + 0.7, margin=0.1, prior=0.02, prior_df=4).shows_harm(0.01), "they overlap"
    assert compare(NOISY / 20, NOISY / 20 + 0.05, margin=0.1, prior=0.02, prior_df=4).shows_harm(0.01), "quiet"
    pairs = compare(NOISY, NOISY[::-1] + 2.0, margin=0.1, prior=0.02, prior_df=4, paired=True)
    assert pairs.chance_of_order == pytest.approx(1 / 32)
    for shift in (-2.0, 2.0):
        both = compare(NOISY, NOISY + shift, margin=0.1, prior=0.02, prior_df=4, two_sided=True)
        assert (both.separated, both.chance_of_order) == (True, pytest.approx(2 / 252))


def test_a_spread_that_contradicts_its_prior_is_too_noisy_at_half_of_what_another_is():
    """Half a margin of 0.1 is resolved with 95 % confidence at a standard error of 0.03; that of these runs is 0.04."""
    surprising, expected = (compare(NOISY / 7, NOISY / 7, margin=0.1, prior=sd, prior_df=4) for sd in (0.01, 0.06))
    assert surprising.standard_error == pytest.approx(expected.standard_error, rel=0.05) == pytest.approx(0.04, rel=0.1)
    assert surprising.too_noisy
    assert not expected.too_noisy


def test_runs_needed_is_the_first_design_with_the_power_and_none_when_hopeless():
    found = compare(np.array([0.0, 0.05, -0.05]), np.array([0.01, 0.06, -0.04]), margin=0.14, prior=0.05, prior_df=4)
    needed = runs_needed(found, truth=0.0, alpha_pass=0.05, alpha_block=0.0025, least=1)
    assert needed is not None
    assert pass_probability(found, found.design.grown(needed), 0.0, 0.05) >= 0.8
    assert pass_probability(found, found.design.grown(needed - 1), 0.0, 0.05) < 0.8
    assert runs_needed(found, truth=0.139, alpha_pass=0.05, alpha_block=0.0025, least=1) is None
    assert runs_needed(found, truth=0.5, alpha_pass=0.05, alpha_block=0.0025, least=3) == 3


def test_the_chance_of_pass_counts_both_directions_where_both_are_harm():
    """Beside what the judge does, at a margin where one direction alone would pass in 74 % instead of 43."""
    rng = np.random.default_rng(5)
    sides = [(rng.normal(0, 0.1, 5), rng.normal(0, 0.1, 5)) for _ in range(1000)]
    found = [compare(*side, margin=0.18, prior=0.1, prior_df=4, two_sided=True) for side in sides]
    passed = np.mean([each.p_noninferior <= 0.05 for each in found])
    told = [pass_probability(each, each.design, 0.0, 0.05) for each in found[:200]]
    assert np.mean(told) == pytest.approx(passed, abs=0.1)


def test_the_smallest_detectable_harm_is_blocked_four_times_of_five():
    known = math.sqrt(squares_of([BASELINE, BASELINE[:3]]).variance)  # runs that spread as their prior says
    found = compare(BASELINE, BASELINE[:3] + 0.001, margin=0.05, prior=known, prior_df=4)
    harm = smallest_detectable(found, 0.01)
    assert block_probability(found, found.design, harm, 0.01) == pytest.approx(0.8, abs=0.01)


def test_margin_zero_and_equal_values_divide_by_nothing():
    same = np.full(3, 0.5)
    found = compare(same, same, margin=0.0, prior=0.02, prior_df=4)
    assert found.p_harm == pytest.approx(0.5)
    assert not found.too_noisy, "no margin, and so none that it could not resolve"
    assert runs_needed(found, truth=0.0, alpha_pass=0.05, alpha_block=0.01, least=1) is None
    assert math.isfinite(smallest_detectable(found, 0.01))


def test_design_information():
    assert Design(baseline_runs=5, candidate_runs=3, paired=False).information == pytest.approx(15 / 8)
    assert Design(baseline_runs=3, candidate_runs=3, paired=True).information == pytest.approx(3 / 2)
    assert Design(baseline_runs=3, candidate_runs=3, paired=True, averaged=2).information == pytest.approx(3 / 1.5)


@pytest.mark.filterwarnings("error")
def test_a_spread_that_no_float_holds_is_too_noisy_and_warns_nobody():
    far = compare(np.array([0.0, 1e300]), np.array([-1e300, 0.0, 1e300]), margin=1.0, prior=0.3, prior_df=4.0)
    assert far.too_noisy
    assert far.p_noninferior > 0.05
