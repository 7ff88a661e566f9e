"""A metric of the user's own is judged and reported like ours, by whichever name a trainer or a script logged it."""

from __future__ import annotations

import pytest
from verdicts import check

from canary_mlflow.gates import Outcome, PolicyError, parse_policy, policy_to_dict
from canary_mlflow.gates.judge import judge

OWN = {"metric": {"name": "pass_at_1", "better": "higher", "scale": "identity"}, "margin": 0.05, "prior": 0.01}


@pytest.mark.parametrize("logged", ["pass_at_1", "trl/pass_at_1"])
def test_a_score_of_ones_own_decides(smoke_with, make_version, logged):
    policy = smoke_with(rules={"pass_at_1": OWN})
    baseline = make_version("a", 5, series_={logged: [0.6]})
    for score, outcome in ((0.61, Outcome.PASS), (0.5, Outcome.BLOCK)):
        verdict = judge(policy, baseline, make_version("b", 3, series_={logged: [score]}))
        assert verdict.outcome is outcome
        assert check(verdict, "pass_at_1").evidence.candidate == pytest.approx(score)
    assert "Pass at 1 0.600 → 0.500 (-0.1000, limit -0.0500)" in verdict.reason
    assert parse_policy(policy_to_dict(policy)) == policy


def test_what_an_own_metric_is_must_be_said(smoke_with):
    with pytest.raises(PolicyError, match="unknown key 'worse'; valid: better, name, scale, unit"):
        smoke_with(rules={"x": {**OWN, "metric": {"name": "x", "worse": "lower", "scale": "log"}}})
    with pytest.raises(PolicyError, match=r"rules\.pass_at_1: metric missing; 'pass_at_1' is none of ours"):
        smoke_with(rules={"pass_at_1": {"margin": 0.05, "prior": 0.01}})
    with pytest.raises(PolicyError, match=r"rules\.nats: prior missing"):
        smoke_with(rules={"nats": {"metric": "entropy", "margin": 0.05}})
