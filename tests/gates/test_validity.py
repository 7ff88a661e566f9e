"""Which runs' clocks count, and that a change of the code is not mistaken for a contended machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from canary_mlflow.gates import CheckOutcome, Outcome, ReasonCode, Series, judge
from canary_mlflow.gates.evidence.clocks import contended


def constant(run, **values):
    held = {name: Series(name=name, steps=np.arange(1, 101), values=np.full(100, x)) for name, x in values.items()}
    return replace(run, series={**run.series, **held})


def each(version, **values):
    runs = [constant(run, **{name: some[i] for name, some in values.items()}) for i, run in enumerate(version.runs)]
    return replace(version, runs=tuple(runs))


def test_a_step_that_sleeps_in_every_run_is_a_slowdown_not_contention(smoke, make_version):
    verdict = judge(smoke, make_version("a"), make_version("b", factor={"step_time": 1.3}))
    assert (verdict.outcome, verdict.notes) == (Outcome.BLOCK, ())


def test_the_sentinel_sees_a_whole_session_that_was_contended_on_either_side(smoke, make_version):
    quiet, busy = {"sentinel_time": [1.0, 1.02, 0.99]}, {"sentinel_time": [1.3, 1.25, 1.4]}
    for left, right, side in ((quiet, busy, "candidate"), (busy, quiet, "baseline")):
        verdict = judge(smoke, each(make_version("a"), **left), each(make_version("b"), **right))
        assert (verdict.outcome, verdict.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.INVALID_ENVIRONMENT)
        assert f"no {side} run has a usable clock (contended)" in next(
            c.reason for c in verdict.checks if c.metric == "step_time"
        )
        loss = next(check for check in verdict.checks if check.metric == "eval_loss")
        assert loss.outcome is CheckOutcome.PASS, "what is learned does not depend on the clock"


def test_kernels_of_two_versions_are_not_compared(smoke, make_version):
    old = each(make_version("a"), sentinel_time=[1.3, 1.25, 1.4])
    warm = {"environment": {f"canary_mlflow.{one}": "counts warm kernels" for one in ("sentinel_time", "step_cost")}}
    new = each(make_version("b", **warm), sentinel_time=[1.0, 1.02, 0.99])
    verdict = judge(smoke, old, new)
    assert (verdict.outcome, contended(smoke, old.runs, new.runs)) == (Outcome.PASS, {})
    cost = next(check for check in verdict.checks if check.metric == "step_cost")
    assert cost.outcome is CheckOutcome.NOT_JUDGED
    again = each(make_version("a", **warm), sentinel_time=[1.3, 1.25, 1.4])
    assert contended(smoke, again.runs, new.runs).keys() == {run.run_id for run in again.runs}


def test_nothing_recorded_is_no_reason(smoke, make_version):
    bare = {"series_": {"step_cpu_time": None}}
    assert contended(smoke, make_version("a", **bare).runs, make_version("b", **bare).runs) == {}


def test_what_goes_by_between_the_steps_is_said_if_it_becomes_more(smoke, make_version):
    def version(name, pause, start=1.0):
        series = {"step_time": [0.1] * 100, "pause_time": [pause] * 100, "outside_time": start and [start]}
        return make_version(name, series_=series)

    def said(before, now):
        return [note for note in judge(smoke, version("a", before), version("b", now)).notes if "between" in note]

    assert said(0.1, 0.1) == said(0.1, 0.11) == said(0.3, 0.1) == []
    (note,) = said(0.0, 0.1)
    assert note.startswith("50 % of the candidate's time went by between its steps")
    assert note.endswith("0 % of the baseline's: of that, outside_time counts what the CPU computed")
    earlier = version("a", 0.0, start=None)  # an earlier version of the callback measured it, and noted none
    assert not [note for note in judge(smoke, earlier, version("b", 0.1)).notes if "between" in note]


def outside(make_version, name, seconds, sentinel=1.0):
    """Three runs whose process computed for `seconds` between steps, evaluating and saving."""
    told = Series(name="outside_time", steps=np.array([1, 50, 100]), values=np.array([0.5, 0.25, 0.25]) * seconds)
    made = each(make_version(name), sentinel_time=[sentinel] * 3)
    spread = [0.97, 1.0, 1.03]
    return replace(
        made,
        runs=tuple(
            replace(run, series={**run.series, "outside_time": replace(told, values=told.values * factor)})
            for run, factor in zip(made.runs, spread, strict=True)
        ),
    )


@pytest.mark.parametrize(
    ("before", "now", "sentinel", "outcome"),
    [
        (2.0, 16.0, 1.0, CheckOutcome.BLOCK),
        (0.15, 2.0, 1.0, CheckOutcome.BLOCK),
        (2.0, 2.4, 1.0, CheckOutcome.PASS),
        (0.05, 0.3, 1.0, CheckOutcome.PASS),  # six times, which is less than a second
        (16.0, 2.0, 1.0, CheckOutcome.PASS),
        (2.0, 16.0, 1.3, CheckOutcome.BLOCK),  # a busy machine
    ],
)
def test_what_goes_by_between_steps_blocks_if_it_becomes_much_more(smoke, make_version, before, now, sentinel, outcome):
    verdict = judge(smoke, outside(make_version, "a", before), outside(make_version, "b", now, sentinel))
    assert next(one for one in verdict.checks if one.metric == "outside_time").outcome is outcome


def test_what_a_cold_cache_costs_before_the_first_step_is_said_and_blocks_nothing(smoke, make_version):
    warm, cold = (make_version(name, series_={"setup_time": [took]}) for name, took in (("a", 2.0), ("b", 6.0)))
    verdict = judge(smoke, warm, cold)
    assert verdict.outcome is Outcome.PASS
    assert next(one for one in verdict.checks if one.metric == "setup_time").outcome is CheckOutcome.WARN


def test_a_champion_that_did_not_record_what_belongs_to_no_step_refuses_nobody(smoke, make_version):
    assert judge(smoke, make_version("a"), outside(make_version, "b", 9.0)).outcome is Outcome.PASS
    assert judge(smoke, outside(make_version, "a", 9.0), make_version("b")).reason_code is ReasonCode.MISSING_DATA


def test_a_policy_may_leave_no_more_than_what_is_within_every_limit(smoke, make_version):
    rules = (replace(rule, margin=0.0) if rule.name == "outside_time" else rule for rule in smoke.rules)
    policy = replace(smoke, rules=tuple(rules))
    assert judge(policy, outside(make_version, "a", 9.0), outside(make_version, "b", 9.0)).outcome is Outcome.PASS
    assert judge(policy, outside(make_version, "a", 9.0), outside(make_version, "b", 12.0)).outcome is Outcome.BLOCK


def beside(make_version, name, cost, in_line, **others):
    """Three runs on a CPU: of each step's time, this share went by in line for a core."""
    wall = np.where(np.arange(100) < others.get("from_", 0), 0.02, 0.02 / (1 - in_line))
    held = {"step_time": wall, "step_cpu_time": np.full(100, 0.02), "step_wait": np.zeros(100)}
    held["step_cost"] = 12 * np.where(np.arange(100) < others.get("from_", 0), 1, cost)
    held |= {key: None for key in others.get("without", ())}
    return make_version(name, series_=held, hardware={"backend": "cpu"})


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        ({"cost": 1.24, "in_line": 0.8}, ReasonCode.INVALID_ENVIRONMENT),
        ({"cost": 1.4, "in_line": 0.8, "from_": 50}, ReasonCode.INVALID_ENVIRONMENT),
        ({"cost": 1.24, "in_line": 0.05}, ReasonCode.REGRESSION),
        ({"cost": 1.4, "in_line": 0.0, "from_": 50}, ReasonCode.REGRESSION),
        ({"cost": 1.6, "in_line": 0.8}, ReasonCode.REGRESSION),
        ({"cost": 1.24, "in_line": 0.8, "without": ["step_wait"]}, ReasonCode.REGRESSION),
        ({"cost": 1.1, "in_line": 0.8}, ReasonCode.PASS),
    ],
)
def test_a_cost_that_neighbours_explain_does_not_block_and_one_beyond_that_does(smoke, make_version, candidate, said):
    verdict = judge(smoke, beside(make_version, "a", 1.0, 0.0), beside(make_version, "b", **candidate))
    assert verdict.reason_code is said, verdict.reason


def test_threads_that_compute_less_side_by_side_did_not_stand_in_line(smoke, make_version):
    before, now = beside(make_version, "a", 1.0, -3.0), beside(make_version, "b", 1.24, -2.5)
    assert judge(smoke, before, now).reason_code is ReasonCode.REGRESSION


def test_a_run_of_a_few_steps_does_not_tell_of_neighbours(smoke, make_version):
    now = beside(make_version, "b", 1.24, 0.0)
    few = {name: replace(one, steps=one.steps[:3], values=one.values[:3]) for name, one in now.runs[0].series.items()}
    verdict = judge(
        smoke,
        beside(make_version, "a", 1.0, 0.0),
        replace(now, runs=(*now.runs, replace(now.runs[0], series=few, run_id="few", seed=9))),
    )
    assert next(check for check in verdict.checks if check.metric == "step_cost").outcome is CheckOutcome.BLOCK


def test_what_a_champion_from_a_crowded_machine_hides_is_said(smoke, make_version):
    verdict = judge(smoke, beside(make_version, "a", 1.2, 0.8), beside(make_version, "b", 1.0, 0.0))
    assert any("the baseline stood in line for a core for 80 %" in note for note in verdict.notes)
