"""Each summary against a value computed by hand or by scipy, and the standard error against theory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from gates.summaries import SUMMARIES, rate
from gates.wobble import own_variance, recurs, within_run

RAMP = np.arange(1.0, 13.0)  # 1 .. 12


@pytest.mark.parametrize(
    ("name", "warmup", "expected"),
    [
        ("iqm", 0, 6.5),  # mean of 4 .. 9
        ("iqm", 4, 8.5),  # of 5 .. 12: mean of 7 .. 10
        ("median", 4, 8.5),
        ("mean", 4, 8.5),
        ("p10", 0, 2.1),
        ("tail_mean", 0, 9.5),  # 7 .. 12
        ("tail_mean", 8, 10.5),  # 9 .. 12: never the warm-up
        ("tail_area", 0, 9.5),
        ("max", 4, 12.0),
        ("last", 4, 12.0),
        ("tail_excess", 0, 0.0),  # a ramp has mean == IQM
        ("drift", 0, math.log(10.5 / 2.5)),  # 9 .. 12 against 1 .. 4
    ],
)
def test_known_answers(make_series, name, warmup, expected):
    assert SUMMARIES[name](make_series("x", RAMP), warmup) == pytest.approx(expected, abs=1e-12)


def test_iqm_is_the_quarter_trimmed_mean(make_series):
    values = np.random.default_rng(0).lognormal(size=103)
    assert SUMMARIES["iqm"](make_series("x", values), 0) == pytest.approx(stats.trim_mean(values, 0.25))


def test_tail_excess_sees_rare_slow_steps_that_the_iqm_does_not(make_series):
    calm, spiky = np.ones(100), np.ones(100)
    spiky[::20] = 3.0
    assert SUMMARIES["iqm"](make_series("x", spiky), 0) == SUMMARIES["iqm"](make_series("x", calm), 0)
    assert SUMMARIES["tail_excess"](make_series("x", spiky), 0) == pytest.approx(math.log(1.1))


def test_the_peak_counts_during_warmup_too(make_series):
    assert SUMMARIES["max"](make_series("x", [9, 1, 1, 1]), 3) == 9


@pytest.mark.parametrize("name", sorted(SUMMARIES))
@pytest.mark.parametrize("values", [[], [np.nan] * 30, [np.nan, np.inf] * 20])
def test_nothing_to_summarise_is_nan_not_an_error(make_series, name, values):
    assert math.isnan(SUMMARIES[name](make_series("x", values), 5))


@pytest.mark.parametrize("name", sorted(SUMMARIES))
def test_non_finite_values_are_left_out(make_series, name):
    clean = np.random.default_rng(1).lognormal(size=60)
    holes = np.repeat(clean, 2)
    holes[1::2] = np.nan
    assert SUMMARIES[name](make_series("x", holes), 0) == pytest.approx(SUMMARIES[name](make_series("x", clean), 0))


def test_rate_is_the_sum_over_the_sum(make_series):
    tokens, times = make_series("tokens", [100, 900, 500]), make_series("step_time", [1.0, 3.0, 2.0])
    assert SUMMARIES["rate"](rate(tokens, times, 0), 0) == pytest.approx(1500 / 6)
    assert SUMMARIES["rate"](rate(tokens, times, 1), 1) == pytest.approx(1400 / 5)


def test_standard_error_of_independent_values_is_the_textbook_one():
    rng = np.random.default_rng(2)
    found = [within_run(SUMMARIES["mean"], rng.normal(5, 1, 400))[0] for _ in range(200)]
    assert np.mean(found) == pytest.approx(1 / math.sqrt(400), rel=0.05)


def test_standard_error_grows_with_autocorrelation_and_ignores_a_trend():
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 1, 2000)
    walk = np.zeros(2000)
    for i in range(1, 2000):
        walk[i] = 0.8 * walk[i - 1] + noise[i]
    naive = np.std(walk) / math.sqrt(2000)
    assert within_run(SUMMARIES["mean"], walk + 50)[0] > 2 * naive
    trending = noise + np.linspace(0, 3, 2000)
    plain_batch_means = np.std(trending.reshape(20, 100).mean(axis=1), ddof=1) / math.sqrt(20)
    assert within_run(SUMMARIES["mean"], trending)[0] < 0.25 * plain_batch_means


@pytest.mark.parametrize(("values", "batches"), [(19, 0), (20, 5), (49, 7), (100, 10), (400, 20), (2000, 20)])
def test_a_runs_number_is_that_of_five_to_twenty_stretches_of_it(values, batches):
    assert len(within_run(SUMMARIES["mean"], np.arange(1.0, 1 + values))[1]) == batches


@pytest.mark.parametrize("steps", [45, 59, 60, 300])
def test_the_standard_error_of_a_drift_is_what_drifts_differ_by(steps):
    drift, rng = SUMMARIES["drift"].statistic, np.random.default_rng(4)
    runs = np.exp(rng.normal(0, 0.05, (1000, steps)))
    found = np.mean([within_run(SUMMARIES["drift"], run)[0] ** 2 for run in runs])
    assert found == pytest.approx(np.var(drift(runs)), rel=0.2)


def test_single_values_have_no_standard_error():
    assert within_run(SUMMARIES["last"], np.array([1.0]))[0] == 0.0
    assert within_run(SUMMARIES["iqm"], np.ones(10))[0] == 0.0


def test_a_schedule_that_all_runs_share_is_no_noise_of_a_drift(make_series):
    rng = np.random.default_rng(1)
    longer = np.repeat([0.1, 0.15, 0.2, 0.25, 0.3, 0.35], 80)
    drift = SUMMARIES["drift"]

    def error(times):
        return within_run(drift, drift.values(make_series("step_time", times), 0))[0]

    wobble = np.exp(rng.normal(0, 0.02, 480))
    assert error(longer * wobble) < 20 * error(0.2 * wobble), "24 times, by batches of the whole run"
    assert error(0.2 * wobble) == pytest.approx(0.02 * np.sqrt(2 / 160), rel=0.5)


@pytest.mark.parametrize(("second", "found"), [(0.4, False), (0.6, True), (-0.6, True)])
def test_what_happens_twice_recurs_if_one_is_half_as_large_as_the_other(second, found):
    assert recurs(np.array([0.0, 0.1, 1.0, 0.0, -0.1, second, 0.0, 0.0])) is found


@pytest.mark.parametrize("sizes", [(2,), (8,), (5, 3), (2, 2)])
def test_what_the_runs_of_a_side_have_in_common_is_no_part_of_what_each_wobbles_by(sizes):
    rng = np.random.default_rng(6)
    schedules = rng.normal(0, 50, (len(sizes), 20))
    drawn = [
        [list(own + rng.normal(0, 1, (size, 20))) for own, size in zip(schedules, sizes, strict=True)]
        for _ in range(500)
    ]
    assert np.mean([own_variance(sides) for sides in drawn]) == pytest.approx(1 / 20, rel=0.06)
    assert own_variance(drawn[0]) == own_variance([side[::-1] for side in drawn[0]]), "in any order, bit for bit"
