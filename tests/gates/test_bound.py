"""What a step waits for decides by which clock it is judged: a small model on a GPU waits for its host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from canary_mlflow.gates import Outcome, Role, judge

STEPS = 100


def held(times: float, *, used: float = 10.0, cpu: float = 0.98, cost: float = 1.0) -> dict:
    """Series of a run whose steps take `times` as long as usual, of which the host computes the share `cpu`."""
    rng = np.random.default_rng(int(1000 * times))
    wall = 0.012 * times * np.exp(rng.normal(0, 0.04, STEPS))
    return {
        "step_time": wall,
        "step_cpu_time": cpu * wall,
        "step_cost": 3.0 * cost * np.exp(rng.normal(0, 0.04, STEPS)),
        "gpu_utilization": np.full(STEPS, used),
    }


def on_cpu(times: float, waits: float | None) -> dict:
    """Series of a run on a CPU whose steps take `times` as long as usual, of which they wait for the share `waits`."""
    wall = held(times)["step_time"]
    waited = {} if waits is None else {"step_wait": waits * wall}
    return {**held(times), "gpu_utilization": None, "step_cpu_time": (1 - (waits or 0.0)) * wall, **waited}


def stalled(make_version, name: str, runs: int):
    """A version, in so many of whose three runs one step stood still for half as long as all others took."""
    made = make_version(name, steps=STEPS, series_=on_cpu(1.0, 0.01), hardware={"backend": "cpu", "device": "one"})
    waits = made.runs[0].series["step_wait"].values.copy()
    waits[-5] = 0.5 * made.runs[0].series["step_time"].values.sum()
    wait = replace(made.runs[0].series["step_wait"], values=waits)
    odd = [replace(run, series={**run.series, "step_wait": wait}) for run in made.runs[:runs]]
    return replace(made, runs=(*odd, *made.runs[runs:]))


def verdict(make_version, smoke, baseline: dict, candidate: dict, backend: str = "cuda"):
    where = {"backend": backend, "device": "one"}
    sides = [
        make_version(name, steps=STEPS, series_=series, hardware=where)
        for name, series in (("b", baseline), ("c", candidate))
    ]
    return judge(smoke, *sides)


def deciding(found) -> set[str]:
    return {check.metric for check in found.checks if check.role is Role.GATE and "step" in check.metric}


def test_a_busier_host_is_not_slower_code(make_version, smoke):
    """As measured on an H200: unchanged PPO took 29 % longer in a session whose host was busy."""
    found = verdict(make_version, smoke, held(1.0), held(1.29))
    assert (found.outcome, deciding(found)) == (Outcome.PASS, {"step_cost"})


def test_code_that_costs_the_host_more_blocks(make_version, smoke):
    found = verdict(make_version, smoke, held(1.0), held(1.5, cost=1.5))
    assert (found.outcome, deciding(found)) == (Outcome.BLOCK, {"step_cost"})


@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [
        ({"used": 97.0}, {"used": 97.0}),  # the GPU works all the time
        ({}, {"used": 97.0}),  # only the baseline waited for its host
        ({}, {"cpu": 0.7}),  # the candidate sleeps: its host does not compute
    ],
)
def test_otherwise_the_clock_decides(make_version, smoke, baseline, candidate):
    found = verdict(make_version, smoke, held(1.0, **baseline), held(1.29, **candidate))
    assert (found.outcome, deciding(found)) == (Outcome.BLOCK, {"step_time"})


def test_without_the_drivers_word_the_clock_decides(make_version, smoke):
    without = {**held(1.29), "gpu_utilization": None}
    found = verdict(make_version, smoke, held(1.0), without)
    assert (found.outcome, deciding(found)) == (Outcome.BLOCK, {"step_time"})


@pytest.mark.parametrize(
    ("before", "now", "outcome", "decides"),
    [
        ((1.0, 0.01), (1.5, 0.01), Outcome.PASS, "step_cost"),  # neighbours
        ((1.0, 0.01), (1.5, 0.34), Outcome.BLOCK, "step_time"),  # the candidate sleeps
        ((1.0, 0.01), (1.5, None), Outcome.BLOCK, "step_time"),  # and does not say so
        ((1.0, None), (1.5, None), Outcome.PASS, "step_cost"),  # runs that nothing is known of
        ((1.0, None), (1.5, 0.01), Outcome.PASS, "step_cost"),  # a baseline from before that was recorded
        ((1.5, 0.34), (1.5, 0.34), Outcome.PASS, "step_time"),  # both do
    ],
)
def test_waiting_that_takes_no_cpu_time_is_seen_by_the_clock(make_version, smoke, before, now, outcome, decides):
    found = verdict(make_version, smoke, on_cpu(*before), on_cpu(*now), backend="cpu")
    assert (found.outcome, deciding(found)) == (outcome, {decides})


@pytest.mark.parametrize(("runs", "decides"), [(0, "step_cost"), (1, "step_cost"), (2, "step_time"), (3, "step_time")])
def test_a_disk_that_stood_still_in_one_run_is_not_what_a_side_waits_for(make_version, smoke, runs, decides):
    """A champion with one such run was judged by the clock ever after."""
    found = judge(smoke, stalled(make_version, "b", runs), stalled(make_version, "c", 0))
    assert deciding(found) == {decides}
