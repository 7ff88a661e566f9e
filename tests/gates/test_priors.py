"""Prior spreads against numbers published for limma, and what is learnt from few groups."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from canary_mlflow.gates.calibration import resolvable, spreads
from canary_mlflow.gates.model.rules import Prior, fit_prior, learn_prior
from canary_mlflow.gates.stats.comparisons import compare
from canary_mlflow.gates.stats.power import chances


def test_the_prior_is_that_of_limma():
    # squeezeVar(c(0.5, 1.3, 7.8), df=3) of limma 3.55, as the test of its translation in InMoose gives it.
    variance, df = fit_prior([0.5, 1.3, 7.8], [3, 3, 3])
    assert (variance, df) == (pytest.approx(1.676927, abs=1e-6), pytest.approx(2.830777, abs=1e-6))


def test_groups_that_differ_by_chance_alone_share_one_variance():
    variance, df = fit_prior([1.0, 1.1, 0.9, 1.05], [5, 5, 5, 5])
    assert (variance, df) == (pytest.approx(1.0125), math.inf)


def test_simulated_groups_give_back_their_prior():
    rng = np.random.default_rng(2)
    true = 0.02**2 * 6 / rng.chisquare(6, 4000)
    variance, df = fit_prior(true * rng.chisquare(2, 4000) / 2, np.full(4000, 2))
    assert math.sqrt(variance) == pytest.approx(0.02, rel=0.05)
    assert df == pytest.approx(6, rel=0.15)


def test_a_learnt_prior_is_worth_little_until_it_rests_on_many_groups():
    rng = np.random.default_rng(3)

    def groups(count):
        return (0.02**2 * rng.chisquare(4, count) / 4).tolist(), [4.0] * count

    few, many = learn_prior(*groups(10)), learn_prior(*groups(40))
    assert few.kind == many.kind == "learnt"
    assert few.df <= 10 < many.df
    one = learn_prior([0.01**2], [4])
    assert (one.kind, one.sd, one.df) == ("calibrated", pytest.approx(0.01), 4)
    assert learn_prior([0.0], [4]) is None, "equal runs say nothing about a spread"


@pytest.mark.parametrize(
    ("variances", "df", "kind", "worth"),
    [
        ([1e-4, 1e-4], 30, "calibrated", 10),
        ([1e-4] * 3, 1, "learnt", 3),  # never more than the groups have
        ([1e-4] * 29, 4, "learnt", 10),
        ([1e-4] * 30, 4, "learnt", 120),
        ([0.5, 1.3, 7.8], 3, "learnt", 2.830777),
        ([0.4, 1.3, 10.0], 3, "calibrated", 9),  # the fit is worth 1.94: too unequal for one prior
    ],
)
def test_what_a_measured_prior_is_worth(variances, df, kind, worth):
    found = learn_prior(variances, [df] * len(variances))
    assert (found.kind, found.df) == (kind, pytest.approx(worth))
    assert kind == "learnt" or found.sd == pytest.approx(math.sqrt(np.mean(variances)))


@pytest.mark.parametrize("spread", [0.01, 0.02])
def test_intervals_cover_the_truth_as_often_as_they_say(spread):
    # Drawn with the prior's own spread, and half of it: covered at least as often as promised.
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(1000):
        found = compare(
            rng.normal(0, spread, 5),
            rng.normal(0.03, spread, 3),
            margin=0.05,
            prior=Prior(sd=0.02, df=4, kind="shipped"),
        )
        low, high = found.interval(0.05)
        hits += low <= 0.03 <= high
    assert hits / 1000 >= 0.90 - 2 * math.sqrt(0.9 * 0.1 / 1000)
    assert spread < 0.02 or hits / 1000 <= 0.98


def test_spreads_of_unchanged_runs(smoke, make_version):
    groups = [make_version(name, 4).runs for name in "abc"]
    found = {each.rule.name: each for each in spreads(smoke, groups)}
    logs = [[np.log(stats.trim_mean(run.series["step_time"].values[10:], 0.25)) for run in group] for group in groups]
    pooled = math.sqrt(np.mean([np.var(each, ddof=1) for each in logs]))
    assert found["step_time"].sd == pytest.approx(pooled, rel=0.05)
    assert (found["step_time"].runs, found["step_time"].groups, found["step_time"].prior.kind) == (12, 3, "learnt")
    assert resolvable(found["step_time"].margin) == pytest.approx(0.058, abs=0.002)
    assert "iteration_time" not in found


def test_power_is_the_error_level_at_the_margin_and_rises_with_runs(smoke):
    rule = smoke.rules[0]
    prior = Prior(sd=0.03, df=4, kind="given")
    one, three, five = (chances(smoke, rule, prior, size) for size in ((5, 1), (5, 3), (5, 5)))
    beyond = 1.5 * rule.harm_margin
    assert 0.02 < three.passed(rule.harm_margin) <= smoke.alpha_pass, "no larger than its prior, it is not narrowed"
    assert one.block(beyond) == 0.0, "one run never blocks"
    assert 0.9 < three.block(beyond) <= five.block(beyond)
    assert three.passed(0.0) > 0.95
    assert three.block(0.0) < 1e-6
