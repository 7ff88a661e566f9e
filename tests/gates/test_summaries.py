"""Each summary against a value computed by hand or by scipy, and the standard error against theory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from canary_mlflow.gates.model.records import SUMMARIES, rate

RAMP = np.arange(1.0, 13.0)  # 1 .. 12


@pytest.mark.parametrize(
    ("name", "warmup", "expected"),
    [
        ("iqm", 0, 6.5),  # mean of 4 .. 9
        ("iqm", 4, 8.5),  # of 5 .. 12: mean of 7 .. 10
        ("median", 4, 8.5),
        ("mean", 4, 8.5),
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
