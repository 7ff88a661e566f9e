"""Spreads measured from earlier runs: of neighbours in a row, within sessions, and between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from verdicts import check

from gates import Outcome, Version, judge, parse_policy, policy_to_dict
from gates.calibration import of_neighbours, of_sessions, with_history


def test_neighbours_tell_what_runs_differ_by_though_levels_moved():
    rng = np.random.default_rng(3)
    runs = 0.03 * rng.standard_normal(2000)
    assert of_neighbours(runs).sd == pytest.approx(0.03, rel=0.05)
    moved = runs + np.where(np.arange(2000) < 900, 0.0, 0.5)
    assert of_neighbours(moved).sd == pytest.approx(0.03, rel=0.05)
    assert of_neighbours(runs[:9]) is None
    assert (of_neighbours(runs[:10]).df, of_neighbours(runs).df) == (6.0, 8.0)


def test_sessions_tell_their_own_spread_and_that_of_runs():
    rng = np.random.default_rng(4)
    sessions = [rng.normal(0, 0.05) + 0.02 * rng.standard_normal(5) for _ in range(300)]
    found = of_sessions(sessions)
    assert (found.sd, found.between) == (pytest.approx(0.02, rel=0.1), pytest.approx(0.05, rel=0.1))
    assert of_sessions(sessions[:3]).between == 0.0, "three sessions say nothing of a fourth"


@pytest.fixture
def day(make_run):
    """Five runs of a session, whose machine is so many times as slow."""

    def made(name, slower, count=5):
        factor = {"step_time": slower}
        runs = [make_run(f"{name}{i}", factor=factor, session=name) for i in range(count)]
        return Version(model="m", version=name, runs=tuple(runs))

    return made


def test_a_slower_day_is_no_harm_where_days_are_known_to_differ(smoke, day):
    past = [day(f"p{i}", slower).runs for i, slower in enumerate((1.0, 1.2, 0.9, 1.25, 1.1, 0.85))]
    today, before = day("b", 1.25, count=3), day("a", 1.0)
    assert judge(smoke, before, today).outcome is Outcome.BLOCK
    knowing = with_history(smoke, past, {"backend": "cuda", "algo": "dpo"})
    verdict = judge(knowing, before, today)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    found = check(verdict, "step_time").evidence
    assert (found.prior, found.between > 0.1) == ("learnt", True)
    again = judge(parse_policy(verdict.policy), before, today)
    assert check(again, "step_time").evidence == found, "the verdict's policy holds what was learnt"
    assert policy_to_dict(parse_policy(policy_to_dict(knowing))) == policy_to_dict(knowing)
    beside = [replace(run, session="b") for run in before.runs]
    assert judge(knowing, replace(before, runs=tuple(beside)), today).outcome is Outcome.BLOCK, "one session, one day"
