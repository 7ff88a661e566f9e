"""Spreads measured from earlier runs in a row."""

from __future__ import annotations

import numpy as np
import pytest
from verdicts import check

from canary_mlflow.gates import Outcome, Version, judge, parse_policy, policy_to_dict
from canary_mlflow.gates.calibration import of_neighbours, with_history


def test_neighbours_tell_what_runs_differ_by_though_levels_moved():
    rng = np.random.default_rng(3)
    runs = 0.03 * rng.standard_normal(2000)
    assert of_neighbours(runs).sd == pytest.approx(0.03, rel=0.05)
    moved = runs + np.where(np.arange(2000) < 900, 0.0, 0.5)
    assert of_neighbours(moved).sd == pytest.approx(0.03, rel=0.05)
    assert of_neighbours(runs[:9]) is None
    assert (of_neighbours(runs[:10]).df, of_neighbours(runs).df) == (6.0, 8.0)


def test_a_difference_that_its_history_knows_is_no_harm(smoke, make_run):
    """A machine that is often a fifth faster or slower from run to run; and the policy in the verdict holds it."""

    def runs(name, slower):
        return tuple(make_run(f"{name}{i}", factor={"step_time": by}) for i, by in enumerate(slower))

    past = runs("p", np.exp(np.random.default_rng(5).normal(0, 0.2, 12)))
    before, now = (Version(model="m", version=n, runs=runs(n, [by] * 3)) for n, by in (("a", 1.0), ("b", 1.25)))
    assert judge(smoke, before, now).outcome is Outcome.BLOCK
    knowing = with_history(smoke, past, {"backend": "cuda", "algo": "dpo"})
    verdict = judge(knowing, before, now)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    found = check(verdict, "step_time").evidence
    assert (found.prior, found.prior_sd > 0.08) == ("learnt", True)
    again = judge(parse_policy(verdict.policy), before, now)
    assert check(again, "step_time").evidence == found
    assert policy_to_dict(parse_policy(policy_to_dict(knowing))) == policy_to_dict(knowing)
