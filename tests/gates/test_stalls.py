"""Rare long steps are seen however short the runs are, and steps that got faster are not blamed for their pauses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from verdicts import check

from canary_mlflow.policies import load_policy
from gates import Outcome, ReasonCode, Run, Series, Version, judge
from gates.verdict import CheckOutcome


def side(name: str, count: int, steps: int, times: Any, tokens: bool = False, hosts: float = 0.01) -> Version:
    """`times`: seconds of each step, of shape (steps,); hosts differ by 1 %, unless said otherwise, steps by 3 %."""
    made = []
    for index in range(count):
        rng = np.random.default_rng([*name.encode(), index])
        seconds = times * np.exp(rng.normal(0, hosts) + rng.normal(0, 0.03, steps))
        held = {"step_time": seconds, **({"tokens": np.full(steps, 512.0)} if tokens else {})}
        series = {key: Series.from_pairs(key, enumerate(values, 1)) for key, values in held.items()}
        made.append(Run(run_id=f"{name}{index}", seed=None, series=series, last_step=steps))
    return Version(model="m", version=name, runs=tuple(made))


def every(steps: int, nth: int, factor: float) -> Any:
    return 0.1 * np.where(np.arange(1, steps + 1) % nth == 0, factor, 1.0)


@pytest.mark.parametrize(("tier", "steps"), [("perf", 200), ("smoke", 100), ("smoke", 400), ("nightly", 250)])
@pytest.mark.parametrize("tokens", [False, True])
def test_every_tenth_step_five_times_as_long_is_no_pass(tier, steps, tokens):
    plain, stalling = every(steps, 10, 1.0), every(steps, 10, 5.0)
    policy = load_policy(tier)
    found = judge(policy, side("a", 5, steps, plain, tokens), side("b", 3, steps, stalling, tokens))
    assert found.outcome is Outcome.BLOCK
    if not tokens:
        assert "rare long ones came up" in check(found, "step_time").notes[0]
    # Both sides alike: a schedule of pauses is none of the candidate's doing, nor are fewer of them.
    for before, now in ((plain, plain), (stalling, stalling), (stalling, plain)):
        alike = judge(policy, side("a", 5, steps, before, tokens), side("b", 3, steps, now, tokens))
        assert check(alike, "step_time").outcome is CheckOutcome.PASS


@pytest.mark.parametrize(("steps", "nth", "factor"), [(500, 100, 600.0), (500, 50, 10.0), (2000, 500, 600.0)])
@pytest.mark.parametrize("tier", ["perf", "nightly"])
@pytest.mark.parametrize("sizes", [(5, 3), (5, 5)])
def test_an_evaluation_every_so_many_steps_is_no_noise(steps, nth, factor, tier, sizes):
    """Inside a run it wobbles by more than any margin; all runs share it, or have it at steps of their own."""
    policy, pauses = load_policy(tier), every(steps, nth, factor)
    before, longer = side("a", sizes[0], steps, pauses), np.where(pauses > 0.1, 1.5 * pauses, pauses)
    now = side("b", sizes[1], steps, pauses)
    assert judge(policy, before, now).outcome is Outcome.PASS
    assert judge(policy, before, side("b", sizes[1], steps, np.roll(pauses, -nth // 2))).outcome is Outcome.PASS
    rows = [row for row in enumerate(now.runs[0].series["step_time"].values, 1) if row[0] != 30]
    lossy = replace(now.runs[0], series={"step_time": Series.from_pairs("step_time", rows)})
    alike = judge(policy, before, replace(now, runs=(lossy, *now.runs[1:])))
    assert alike.outcome is Outcome.PASS
    assert "is not counted as noise" in check(alike, "step_time_tail").notes[-1], "a row of one run was lost"
    assert judge(policy, before, side("b", sizes[1], steps, longer)).outcome is Outcome.BLOCK


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1)])
def test_one_run_a_side_with_an_evaluation_every_so_many_steps_is_not_past_deciding(sizes):
    pauses = every(500, 100, 50.0)
    found = judge(load_policy("nightly"), side("a", sizes[0], 500, pauses), side("b", sizes[1], 500, pauses))
    assert check(found, "step_time_tail").reason_code is not ReasonCode.TOO_NOISY
    assert found.more_runs <= 8


@pytest.mark.parametrize("sizes", [(2, 2), (5, 3)])
@pytest.mark.parametrize("where", [(250, 250, 250), (120, 250, 400)], ids=["the same step", "other steps"])
def test_one_pause_in_each_run_of_one_side_may_be_chance(sizes, where):
    """A checkpoint by the clock, at the end of runs of about that length: all of one side and none of the other had it
    in 1 of 16 comparisons of two runs a side, and that blocked unchanged code."""
    plain = every(500, 100, 1.0)
    paused = [side(f"b{i}", 1, 500, np.where(np.arange(500) == where[i], 10.0, plain)).runs[0] for i in range(sizes[1])]
    found = judge(
        load_policy("perf"), side("a", sizes[0], 500, plain), Version(model="m", version="b", runs=tuple(paused))
    )
    assert check(found, "step_time_tail").outcome is CheckOutcome.INCONCLUSIVE


def test_pauses_at_random_are_noise():
    def stalling(name: str, count: int) -> Version:
        chance = np.random.default_rng([*name.encode()])
        alone = [side(f"{name}{i}", 1, 500, np.where(chance.random(500) < 0.01, 60, 0.1)) for i in range(count)]
        return Version(model="m", version=name, runs=tuple(each.runs[0] for each in alone))

    found = judge(load_policy("perf"), stalling("a", 5), stalling("b", 3))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert not any("not counted" in note for note in check(found, "step_time_tail").notes)


STEPS = 1000
PAUSES = np.where(np.arange(1, STEPS + 1) % 50 == 0, 0.5, 0.0)


@pytest.mark.parametrize(
    ("before", "now", "rule"),
    [
        (0.1 + PAUSES, 0.07 + PAUSES, "step_time_tail"),
        (0.1 * np.where(np.arange(STEPS) < 400, 1.15, 1.0), np.full(STEPS, 0.1), "step_time_drift"),
        (0.1 * np.where(np.arange(STEPS) < 400, 1.0, 0.9), np.full(STEPS, 0.088), "step_time_drift"),
    ],
)
def test_a_ratio_that_grew_because_something_got_faster_passes(before, now, rule):
    found = judge(load_policy("perf"), side("a", 5, STEPS, before), side("b", 3, STEPS, now))
    assert found.outcome is Outcome.PASS
    assert "but nothing takes longer for it: step time" in check(found, rule).reason


@pytest.mark.parametrize(
    ("sizes", "slower", "outcome"),
    [
        ((20, 20), 0.008, CheckOutcome.PASS),
        ((20, 20), 0.012, CheckOutcome.BLOCK),
        ((5, 3), 0.0, CheckOutcome.BLOCK),  # few runs, whose step times may differ by more than their tails
    ],
)
def test_a_ratio_passes_beside_steps_that_are_shown_to_be_within_half_its_limit(sizes, slower, outcome):
    """The tail grew by 8 %, its limit is 3 %, because most steps got shorter; all together are so much slower."""
    all_steps = 0.11 * np.exp(slower)
    before, now = 0.1 + PAUSES, 0.093 + PAUSES * (all_steps - 0.093) / 0.01
    sides = (side(*each, hosts=0.001) for each in (("a", sizes[0], STEPS, before), ("b", sizes[1], STEPS, now)))
    assert check(judge(load_policy("perf"), *sides), "step_time_tail").outcome is outcome


@pytest.mark.parametrize(
    ("now", "rule"),
    [
        (0.1 + 2 * PAUSES, "step_time_tail"),  # pauses twice as long
        (0.097 + 2.5 * PAUSES, "step_time_tail"),  # beside steps that are a little faster
        (0.1 * np.where(np.arange(STEPS) < 600, 1.0, 1.1), "step_time_drift"),
        (0.1 * np.where(np.arange(STEPS) < 600, 0.93, 1.04), "step_time_drift"),  # faster first, slower in the end
    ],
)
def test_a_ratio_that_grew_because_something_got_slower_blocks(now, rule):
    found = judge(
        load_policy("perf"), side("a", 5, STEPS, 0.1 + (PAUSES if "tail" in rule else 0)), side("b", 3, STEPS, now)
    )
    assert check(found, rule).outcome is CheckOutcome.BLOCK
