"""Tests that share one error level: known answers, and what they spend together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr

from gates.multiplicity import holm

P = st.floats(0.0, 1.0)


@pytest.mark.parametrize(
    ("p_values", "rejected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [True, False, False, True]),  # Holm 1979 at 5 %: .0125, .0167, then .03 > .025
        ([0.001], [True]),
        ([0.04, 0.04], [False, False]),
        ([0.025, 0.05], [True, True]),
        ([], []),
    ],
)
def test_holm(p_values, rejected):
    assert holm(p_values, 0.05) == rejected


@pytest.mark.parametrize(
    ("p_values", "rejected"),
    [
        ([0.0047, 1, 1, 1], [True, False, False, False]),  # .01 - .0005 - .001 - .0037 leave .0048, not .0025
        ([0.0049, 1, 1, 1], [False, False, False, False]),
        ([1, 0.0036, 1, 1], [False, True, False, False]),
        ([1, 0.0038, 1, 1], [False, False, False, False]),  # above its ceiling, whatever its level
        ([0.0061, 0.0036, 1, 1], [True, True, False, False]),  # what is rejected spends no more: .0085 is left
    ],
)
def test_what_a_hypothesis_cannot_spend_goes_to_the_others(p_values, rejected):
    assert holm(p_values, 0.01, [0.01, 0.0037, 0.001, 0.0005]) == rejected


def test_where_the_ceilings_are_less_than_the_level_they_alone_decide():
    assert holm([0.002, 0.0011], 0.01, [0.002, 0.001]) == [True, False]


@given(st.lists(st.tuples(P, P), max_size=6))
def test_ceilings_never_cost_a_rejection_below_them(pairs):
    p_values, ceilings = [p for p, _ in pairs], [ceiling for _, ceiling in pairs]
    for plain, mine, (p, ceiling) in zip(holm(p_values, 0.01), holm(p_values, 0.01, ceilings), pairs, strict=True):
        assert mine or not plain or p > ceiling


@pytest.mark.parametrize("spreads", [(1.0,), (0.9, 0.9, 0.9), (0.3, 0.6, 0.9, 1.2, 2.0), (2.0, 2.0, 2.0, 2.0)])
def test_unchanged_metrics_beyond_their_margins_are_rejected_no_more_often_than_alpha(spreads):
    """Five runs against three, nothing changed; the margin is three standard deviations of the calmest."""
    rng, alpha, margin, df, repeats = np.random.default_rng(5), 0.05, 1.5, 6, 20_000
    error = np.array(spreads) * np.sqrt(1 / 5 + 1 / 3) * np.sqrt(rng.chisquare(df, (repeats, len(spreads))) / df)
    difference = rng.normal(size=error.shape) * np.array(spreads) * np.sqrt(1 / 5 + 1 / 3)
    p_values, ceilings = stdtr(df, -difference / error), stdtr(df, -margin / error)
    false = sum(any(holm(*pair)) for pair in zip(p_values, [alpha] * repeats, ceilings, strict=True))
    assert false / repeats <= alpha + 2 * np.sqrt(alpha / repeats)
