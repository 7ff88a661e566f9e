"""Laws that hold for any data: order and units do not matter, and worse data never turns BLOCK into PASS."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from canary_mlflow.gates import Outcome, Series, Version, judge

LEVELS = st.lists(st.floats(0.7, 1.6), min_size=1, max_size=4)
SEEDS = st.lists(st.integers(0, 4), min_size=4, max_size=4)
few = settings(max_examples=12, deadline=None)


@pytest.fixture(scope="module")
def version(make_run):
    def build(name, levels, seeds=(None,) * 4):
        runs = (
            make_run(f"{name}{i}", seeds[i], factor={"step_time": x, "eval_loss": x**0.5}) for i, x in enumerate(levels)
        )
        return Version(model="canary", version=name, runs=tuple(runs))

    return build


def scaled(run, metric, factor):
    old = run.series[metric]
    return replace(run, series={**run.series, metric: Series(name=metric, steps=old.steps, values=old.values * factor)})


@few
@given(left=LEVELS, right=LEVELS, seeds=SEEDS, data=st.data())
def test_the_order_of_runs_changes_no_bit(smoke, version, left, right, seeds, data):
    baseline, candidate = version("a", left, seeds), version("b", right, seeds)
    shuffled = [replace(side, runs=tuple(data.draw(st.permutations(side.runs)))) for side in (baseline, candidate)]
    assert judge(smoke, *shuffled) == judge(smoke, baseline, candidate)


@few
@given(
    left=st.lists(st.floats(0.97, 1.03), min_size=2, max_size=4),
    right=st.lists(st.floats(1.25, 1.6), min_size=2, max_size=4),
    seeds=SEEDS,
    which=st.integers(0, 3),
    factor=st.floats(1.0, 5.0),
    metric=st.sampled_from(["step_time", "eval_loss", "peak_memory"]),
)
def test_worse_data_never_turns_block_into_pass(smoke, version, left, right, seeds, which, factor, metric):
    baseline, candidate = version("a", left, seeds), version("b", right, seeds)
    assume(judge(smoke, baseline, candidate).outcome is Outcome.BLOCK)
    runs = list(candidate.runs)
    runs[which % len(runs)] = scaled(runs[which % len(runs)], metric, factor)
    assert judge(smoke, baseline, replace(candidate, runs=tuple(runs))).outcome is not Outcome.PASS


@few
@given(left=LEVELS, right=LEVELS, power=st.integers(-20, 20))
def test_the_unit_of_time_does_not_matter(smoke, version, left, right, power):
    sides = version("a", left), version("b", right)
    other = [replace(side, runs=tuple(scaled(run, "step_time", 2.0**power) for run in side.runs)) for side in sides]
    one, two = judge(smoke, *sides), judge(smoke, *other)
    assert [check.outcome for check in one.checks] == [check.outcome for check in two.checks]
    mine, yours = (next(c.evidence for c in v.checks if c.metric == "step_time") for v in (one, two))
    assert (mine is None) == (yours is None)
    if mine and yours:
        assert yours.p_harm == pytest.approx(mine.p_harm, abs=1e-9)
        assert yours.baseline == pytest.approx(mine.baseline * 2.0**power, rel=1e-9)


@few
@given(left=LEVELS, right=LEVELS)
def test_a_swap_of_sides_turns_the_change_around(smoke, version, left, right):
    there = judge(smoke, version("a", left), version("b", right))
    back = judge(smoke, version("b", right), version("a", left))
    forward, backward = (next(c.evidence for c in v.checks if c.metric == "step_time") for v in (there, back))
    assert np.log1p(forward.change) == pytest.approx(-np.log1p(backward.change), abs=1e-9)
    assert max(forward.p_harm, backward.p_harm) == 1.0
    assert not (
        there.outcome is Outcome.BLOCK
        and "Step time" in there.reason
        and "Step time" in back.reason
        and back.outcome is Outcome.BLOCK
    )
