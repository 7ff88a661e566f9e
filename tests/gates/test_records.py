"""Series as they come from a store: out of order, written twice, with values that are not numbers."""

from __future__ import annotations

import sys

import numpy as np

from canary_mlflow.gates import Series


def test_pairs_are_sorted_and_the_last_write_of_a_step_wins():
    series = Series.from_pairs("loss", [(3, 0.3), (1, 0.1), (3, 0.33), (2, 0.2)])
    assert series.steps.tolist() == [1, 2, 3]
    assert series.values.tolist() == [0.1, 0.2, 0.33]


def test_infinity_that_a_sql_store_turned_into_the_largest_float_is_not_finite():
    values = [1.0, np.nan, np.inf, -np.inf, sys.float_info.max, -sys.float_info.max, 1e300]
    series = Series.from_pairs("loss", enumerate(values))
    assert series.finite.tolist() == [True, False, False, False, False, False, True]
    assert series.finite_only().values.tolist() == [1.0, 1e300]


def test_same_values_is_bit_exact_and_takes_nan_for_nan():
    one = Series.from_pairs("loss", [(1, 0.1), (2, np.nan)])
    assert one.same_values(Series.from_pairs("other", [(1, 0.1), (2, np.nan)]))
    assert not one.same_values(Series.from_pairs("loss", [(1, 0.1 + 1e-17 + 2e-17), (2, 0.0)]))
    assert not one.same_values(Series.from_pairs("loss", [(1, np.nextafter(0.1, 1)), (2, np.nan)]))
    assert not one.same_values(Series.from_pairs("loss", [(1, 0.1), (3, np.nan)]))


def test_an_empty_series_is_possible():
    assert len(Series.from_pairs("loss", []).values) == 0
