"""Harm and gain that the middle of a run's steps does not show: each is judged, and no gain is blocked."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from canary_mlflow.gates import Outcome, Run, Series, Version, judge
from canary_mlflow.gates.model.verdict import CheckOutcome, ReasonCode
from canary_mlflow.policies import load_policy

CPU, GPU = {"backend": "cpu", "device": "one"}, {"backend": "cuda", "device": "one"}
TIERS = {"smoke": 100, "perf": 500, "nightly": 2000}
policy_of = cache(load_policy)


def made(name, number, steps, hardware, change):
    """A run whose numbers are as noisy as their priors say; `change` alters its series."""
    rng = np.random.default_rng([*name.encode(), number])
    host = np.exp(rng.normal(0, 0.01))
    warm = 1 + 2.0 * np.exp(-np.arange(steps) / 3)

    def each(level, sd):
        return level * np.exp(rng.normal(0, sd, steps))

    loss = np.linspace(0.69, 0.55, steps) * np.exp(rng.normal(0, 0.01, steps))
    series = {
        "step_time": each(0.02 * host, 0.04) * warm,
        "step_cpu_time": each(0.02 * host, 0.04) * warm,
        "step_cost": each(12 * host, 0.08) * warm,
        "tokens": np.round(each(500, 0.05)),
        "peak_memory": 40_960 * np.exp(rng.normal(0, 0.005)) + np.minimum(np.arange(steps), 20),
        "loss": loss,
        "eval_loss": np.array([0.58 * np.exp(rng.normal(0, 0.008))]),
        "eval_accuracy": np.array([0.8 + rng.normal(0, 0.015)]),
    }
    series = {key: np.asarray(values, float) for key, values in change(series).items()}
    return Run(
        run_id=f"{name}{number}",
        seed=None,
        learned=True,
        last_step=steps,
        workload={"algo": "dpo"},
        hardware=hardware,
        environment={"gpu_memory": "81920"},
        series={
            key: Series(name=key, steps=np.arange(1, steps + 1) if len(x) > 1 else np.array([steps]), values=x)
            for key, x in series.items()
        },
    )


@cache
def unchanged(name, number, tier, backend):
    return made(name, number, TIERS[tier], CPU if backend == "cpu" else GPU, dict)


def outcomes(tier, change, hardware=GPU, which=range(3), trials=4):
    """What is said of three candidate runs, those in `which` changed, beside five."""

    backend, found = hardware["backend"], []
    for trial in range(trials):
        left = [unchanged(f"a{trial}", i, tier, backend) for i in range(5)]
        right = [
            made(f"b{trial}", i, TIERS[tier], hardware, change)
            if i in which
            else unchanged(f"b{trial}", i, tier, backend)
            for i in range(3)
        ]
        sides = (Version(model="m", version=None, runs=tuple(side)) for side in (left, right))
        found.append(judge(policy_of(tier), *sides).outcome)
    return found


def factor(**factors):
    return lambda series: {key: x * factors.get(key, 1.0) for key, x in series.items()}


def where(slow):
    """Steps and their costs, times what `slow` says of their numbers."""
    return lambda series: {
        key: x * slow(np.arange(len(x))) if key in ("step_time", "step_cost") else x for key, x in series.items()
    }


slow_warm_up = where(lambda steps: np.where(steps < 15, 20.0, 1.0))
every_tenth = where(lambda steps: np.where(steps % 10 == 9, 3.5, 1.0))


def leak(series):
    small = series["peak_memory"] - series["peak_memory"][0] + 900
    return {**series, "peak_memory": small + 0.5 * np.arange(len(small))}


def at_the_end(name, share, times):
    def change(series):
        count = len(series[name])
        late = np.arange(count) >= (1 - share) * count
        return {**series, name: series[name] * np.where(late, times, 1.0)}

    return change


def without_evaluation(change):
    return lambda series: {key: x for key, x in change(series).items() if not key.startswith("eval_")}


HARMS = {
    "every tenth step takes 3.5 times as long": (every_tenth, "smoke perf nightly", GPU),
    "every tenth step takes 3.5 times as long, CPU": (every_tenth, "smoke perf nightly", CPU),
    "accuracy falls while the loss is halved": (factor(eval_loss=0.5, eval_accuracy=0.69), "smoke perf nightly", GPU),
    "the last fifth 30 % slower": (at_the_end("step_time", 0.2, 1.3), "smoke perf", GPU),
    "a third slower from step 40 on, CPU": (at_the_end("step_cost", 0.6, 1.33), "smoke perf", CPU),
}


@pytest.mark.parametrize("name", HARMS)
def test_harm_that_the_middle_of_the_steps_hides_is_no_pass(name):
    change, tiers, hardware = HARMS[name]
    for tier in tiers.split():
        assert Outcome.PASS not in outcomes(tier, change, hardware), tier


def test_a_leak_of_half_a_mebibyte_a_step_is_no_pass():
    small = factor(peak_memory=900 / 40_960)
    for tier in ("smoke", "perf"):
        left = [made("a", i, TIERS[tier], GPU, small) for i in range(5)]
        right = [made("b", i, TIERS[tier], GPU, leak) for i in range(3)]
        sides = (Version(model="m", version=None, runs=tuple(side)) for side in (left, right))
        assert judge(policy_of(tier), *sides).outcome is not Outcome.PASS


@pytest.mark.parametrize("tier", ["smoke", "perf"])
def test_one_seed_of_three_that_diverges_in_its_last_steps_is_no_pass(tier):
    diverges = without_evaluation(at_the_end("loss", 0.04, 3.0))
    assert outcomes(tier, diverges, which=[1], trials=3).count(Outcome.BLOCK) == 3


GAINS = {
    "unchanged": factor(),
    "sequence packing": factor(tokens=1.6, step_time=1.3, step_cost=1.3, step_cpu_time=1.3),
    "six times as fast": factor(step_time=1 / 6, step_cpu_time=1 / 6, step_cost=1 / 6),
    "evaluation loss a fifth": factor(eval_loss=0.2),
    "1 % more of 40 GiB": factor(peak_memory=1.01),
    "a compiler's first 15 steps": slow_warm_up,
}


@pytest.mark.parametrize("hardware", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", GAINS)
def test_a_gain_is_never_blocked(name, hardware):
    for tier in ("smoke", "perf"):
        found = outcomes(tier, GAINS[name], hardware, trials=3)
        assert Outcome.BLOCK not in found
        assert Outcome.PASS in found, tier


@pytest.mark.parametrize(("steps", "blocks"), [(40, False), (100, True)])
def test_a_run_of_few_steps_does_not_block_by_its_drift(smoke, steps, blocks):
    """Thirds of ten steps: on a busy machine, unchanged runs of 40 steps got 16 % dearer on the way, all three."""

    def dearer(series):
        return series | {"step_cost": series["step_cost"] * np.where(np.arange(steps) < 0.6 * steps, 1.0, 1.4)}

    left, right = (
        [made(name, at, steps, CPU, change) for at in range(3)] for name, change in (("a", dict), ("b", dearer))
    )
    sides = (Version(model="m", version=None, runs=tuple(side)) for side in (left, right))
    (found,) = (check for check in judge(smoke, *sides).checks if check.metric == "step_cost_growth")
    assert (found.outcome == "BLOCK") == blocks


def sides(change, before=dict, backend="gpu", **fields):
    """Five runs and three of the perf tier, in sessions of their own."""
    hardware = CPU if backend == "cpu" else GPU
    return [
        Version(
            model="m",
            version=None,
            runs=tuple(replace(made(name, i, 500, hardware, of), session=name, **fields) for i in range(count)),
        )
        for name, count, of in (("a", 5, before), ("b", 3, change))
    ]


def test_a_slower_day_without_fresh_runs_is_open_and_twice_as_long_is_not():
    slower = judge(policy_of("perf"), *sides(factor(step_time=1.12)))
    assert (slower.outcome, slower.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.INVALID_ENVIRONMENT)
    assert "made in another session, without fresh runs of the baseline" in slower.reason
    assert judge(policy_of("perf"), *sides(factor(step_time=2.0))).outcome is Outcome.BLOCK
    assert judge(policy_of("smoke"), *sides(factor(step_time=1.25))).outcome is Outcome.BLOCK, (
        "it asks for no fresh runs"
    )
    same = [replace(side, runs=tuple(replace(run, session="one") for run in side.runs)) for side in sides(dict)]
    harmed = [
        same[0],
        replace(same[1], runs=tuple(replace(r, session="one") for r in sides(factor(step_time=1.12))[1].runs)),
    ]
    assert judge(policy_of("perf"), *harmed).outcome is Outcome.BLOCK, "made in one session"


@pytest.mark.parametrize("times", [8.0, 0.25])
def test_a_loss_on_another_scale_is_open_where_nothing_was_evaluated(times):
    found = judge(policy_of("smoke"), *sides(without_evaluation(factor(loss=times)), without_evaluation(dict)))
    assert (found.outcome, found.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.SUSPECT_DATA)
    assert "times the baseline's from the first value to the last: another scale" in found.reason


def test_a_loss_that_begins_alike_and_ends_eight_times_as_high_blocks():
    def worse(series):
        return {**series, "loss": series["loss"] * np.geomspace(1, 8, len(series["loss"]))}

    found = judge(policy_of("smoke"), *sides(without_evaluation(worse), without_evaluation(dict)))
    assert found.outcome is Outcome.BLOCK


def test_a_slow_set_up_is_advice():
    found = judge(policy_of("smoke"), *sides(slow_warm_up))
    words = {check.metric: check.outcome for check in found.checks}
    assert (words["run_time"], words["total_time"]) == (CheckOutcome.PASS, CheckOutcome.WARN)
