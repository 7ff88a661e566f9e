"""Which runs' clocks count, and that a change of the code is not mistaken for a contended machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gates import CheckOutcome, Outcome, ReasonCode, Series, judge
from gates.evidence.clocks import invalid_clocks


def constant(run, **values):
    held = {name: Series(name=name, steps=np.arange(1, 101), values=np.full(100, x)) for name, x in values.items()}
    return replace(run, series={**run.series, **held})


def each(version, **values):
    runs = [constant(run, **{name: some[i] for name, some in values.items()}) for i, run in enumerate(version.runs)]
    return replace(version, runs=tuple(runs))


def names(policy, baseline, candidate):
    return sorted(invalid_clocks(policy, baseline.runs, candidate.runs))


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


@pytest.mark.parametrize("values", [[1900.0, 1890.0, 1880.0], [1500.0, 1500.0, 1510.0]])
def test_gpu_clocks_that_agree_are_valid(smoke, make_version, values):
    assert names(smoke, make_version("a"), each(make_version("b"), gpu_clock=values)) == []


def test_a_throttled_gpu_is_not(smoke, make_version):
    assert names(smoke, make_version("a"), each(make_version("b"), gpu_clock=[1900.0, 1890.0, 1400.0])) == ["b2"]


def test_nothing_recorded_is_no_reason(smoke, make_version):
    bare = {"series_": {"step_cpu_time": None}}
    assert names(smoke, make_version("a", **bare), make_version("b", **bare)) == []


def test_what_goes_by_between_the_steps_is_said_if_it_becomes_more(smoke, make_version):
    def version(name, pause, start=1.0):
        series = {"step_time": [0.1] * 100, "pause_time": [pause] * 100, "start_time": start and [start]}
        return make_version(name, series_=series)

    def said(before, now):
        return [note for note in judge(smoke, version("a", before), version("b", now)).notes if "between" in note]

    assert said(0.1, 0.1) == said(0.1, 0.11) == said(0.3, 0.1) == []
    (note,) = said(0.0, 0.1)
    assert note.startswith("50 % of the candidate's time went by between its steps")
    assert note.endswith("0 % of the baseline's: no metric counts it")
    earlier = version("a", 0.0, start=None)  # an earlier version of the callback measured it, and noted none
    assert not [note for note in judge(smoke, earlier, version("b", 0.1)).notes if "between" in note]


def others_of_its_process(run):
    return replace(run, series={**run.series, "start_time": replace(run.series["start_time"], values=np.zeros(1))})


def test_what_comes_before_the_first_step_is_said_if_it_becomes_more(smoke, make_version):
    def said(*seconds):
        made = [make_version(name, series_={"step_cpu_time": [0.1] * 100, "start_time": [3 * spent]})
                for name, spent in zip("ab", seconds, strict=True)]  # fmt: skip
        sides = [
            replace(side, runs=(side.runs[0], *(others_of_its_process(run) for run in side.runs[1:3]))) for side in made
        ]
        return [note for note in judge(smoke, *sides).notes if "first step" in note]

    assert said(2.0, 2.0) == said(2.0, 2.9) == said(20.0, 22.0) == said(20.0, 2.0) == []
    (note,) = said(2.0, 20.0)
    assert note.startswith("20.0 s of CPU time per run went by before the candidate's first step")
    assert note.endswith("2.0 s before the baseline's: no metric counts it")


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


def test_what_a_champion_from_a_crowded_machine_hides_is_said(smoke, make_version):
    verdict = judge(smoke, beside(make_version, "a", 1.2, 0.8), beside(make_version, "b", 1.0, 0.0))
    assert any("the baseline stood in line for a core for 80 %" in note for note in verdict.notes)
