"""What `canary power` predicts against what the judge's own test then does with runs drawn at random."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from canary_mlflow.gates.model.rules import SHIPPED_DF, Prior, Role, Worse
from canary_mlflow.gates.stats.comparisons import compare
from canary_mlflow.gates.stats.power import chances, level
from canary_mlflow.policies import load_policy

DRAWS = 500
EFFECTS = (0.0, 0.5, 1.5)


@cache
def predicted(tier, name, sd, size, **facts):
    policy = load_policy(tier).resolve(facts)
    rule = next(rule for rule in policy.rules if rule.name == name)
    return policy, rule, chances(policy, rule, Prior(sd=sd, df=SHIPPED_DF, kind="shipped"), size)


def drawn(policy, rule, sd, size, effect):
    """Shares of BLOCK and PASS among runs drawn at random, concluded as gates/metric_checks.py does."""
    rng = np.random.default_rng(17)
    margin, two_sided = rule.harm_margin, rule.worse is Worse.BOTH
    alpha, prior = level(policy, rule), Prior(sd=sd, df=SHIPPED_DF, kind="shipped")
    blocked = passed = 0
    for _ in range(DRAWS):
        sides = rng.normal(0, sd, size[0]), rng.normal(effect * margin, sd, size[1])
        found = compare(*sides, margin=margin, prior=prior, two_sided=two_sided)
        passed += found.p_noninferior <= policy.alpha_pass
        blocked += found.p_harm <= alpha
    return blocked / DRAWS, passed / DRAWS


@pytest.mark.parametrize("size", [(5, 3), *(pytest.param(size, marks=pytest.mark.full) for size in [(5, 5), (10, 5)])])
@pytest.mark.parametrize("effect", [2.0, *(pytest.param(effect, marks=pytest.mark.full) for effect in [1.0, 3.0])])
@pytest.mark.parametrize("sd", [0.03, 0.06, 0.1])
def test_the_chance_of_block_is_the_judges_quiet_or_noisy(sd, effect, size):
    policy, rule, found = predicted("perf", "step_time", sd, size)
    assert found.block(effect * rule.harm_margin) == pytest.approx(drawn(policy, rule, sd, size, effect)[0], abs=0.055)


@pytest.mark.parametrize("size", [(3, 1), (3, 3), (5, 3), (5, 5)])
@pytest.mark.parametrize("effect", EFFECTS)
def test_both_directions_count_where_both_are_harm(effect, size):
    policy, rule, found = predicted("nightly", "kl", 0.1, size, algo="ppo")
    assert rule.role is Role.GATE
    blocked, passed = drawn(policy, rule, 0.1, size, effect)
    assert found.passed(effect * rule.harm_margin) == pytest.approx(passed, abs=0.055)
    if size != (3, 1):  # a single run never blocks
        assert found.block(effect * rule.harm_margin) == pytest.approx(blocked, abs=0.055)


def test_a_rule_that_does_not_decide_never_blocks(smoke):
    rule, prior = smoke.rules[0], Prior(sd=0.02, df=4, kind="shipped")
    for role, passes in ((Role.ADVISORY, True), (Role.IGNORE, False)):
        found = chances(smoke, replace(rule, role=role), prior, (5, 3))
        assert [found.block(harm) for harm in (0.0, 3.0)] == [0.0, 0.0]
        assert (found.passed(0.0) > 0.9) is passes


def test_a_spread_known_from_many_runs_lets_single_runs_pass_more_often(smoke):
    priors = [Prior(sd=0.03, df=df, kind="shipped") for df in (1.0, 10.0)]
    few, many = (chances(smoke, smoke.rules[0], prior, (1, 1)).passed(0.0) for prior in priors)
    assert many > few + 0.2
