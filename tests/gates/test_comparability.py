"""Series that do not yield one number in the same way are not compared, whatever that number says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from verdicts import check

from canary_mlflow.gates import Outcome, Run, Series, Version, judge
from canary_mlflow.gates.model.verdict import ReasonCode
from canary_mlflow.policies import load_policy

STEPS = 1000


def run(
    name: str,
    *,
    every: int = 1,
    first: int = 1,
    gap: tuple[int, int] = (0, 0),
    slower: float = 1.0,
    loss: float = 1.0,
    longer: float = 0.0,
) -> Run:
    """A training with a falling, skewed loss; each point the mean of `every` steps. Steps may grow `longer` on the way;
    points before `first` and inside `gap` are missing."""
    rng = np.random.default_rng(list(name.encode()))
    times = 0.1 * np.exp(rng.normal(0, 0.01) + rng.normal(0, 0.1, STEPS))
    times *= slower * (1 + longer * np.arange(STEPS) / STEPS)
    losses = loss * np.linspace(2, 0.5, STEPS) * np.exp(rng.normal(0, 0.01) + rng.normal(0, 0.1, STEPS))
    steps = np.arange(every, STEPS + 1, every)
    held = {}
    for metric, values in {"step_time": times, "loss": losses}.items():
        points = values.reshape(-1, every).mean(axis=1)
        kept = (steps >= first) & ~((gap[0] <= steps) & (steps < gap[1]))
        held[metric] = Series(name=metric, steps=steps[kept], values=points[kept])
    return Run(run_id=name, seed=None, series=held, completed=True, learned=True, last_step=STEPS)


def version(name: str, count: int, **how: Any) -> Version:
    return Version(model="m", version=name, runs=tuple(run(f"{name}{i}", **how) for i in range(count)))


@pytest.mark.parametrize(("before", "now"), [(1, 10), (10, 1)])
def test_single_steps_and_means_of_ten_are_judged_beside_each_other(perf, before, now):
    found = judge(perf, version("a", 5, every=before), version("b", 3, every=now))
    assert found.outcome is Outcome.PASS
    slower = judge(perf, version("a", 5, every=before), version("b", 3, every=now, slower=1.15))
    assert check(slower, "step_time").outcome == Outcome.BLOCK


@pytest.mark.parametrize(("tier", "every"), [("smoke", 50), ("perf", 10), ("perf", 25), ("nightly", 50)])
def test_what_is_logged_every_so_many_steps_is_judged_all_the_same(tier, every):
    """Transformers logs a loss every `logging_steps`, and a script of one's own the time of every step."""

    def side(name, count, loss):
        made = [run(f"{name}{i}") for i in range(count)]
        seldom = [run(f"{name}{i}", every=every, loss=loss).series["loss"] for i in range(count)]
        both = (replace(one, series={**one.series, "loss": its}) for one, its in zip(made, seldom, strict=True))
        return Version(model="m", version=name, runs=tuple(both))

    policy = load_policy(tier)
    assert check(judge(policy, side("a", 5, 1.0), side("b", 5, 2.0)), "loss").outcome == Outcome.BLOCK
    unchanged = check(judge(policy, side("a", 5, 1.0), side("b", 5, 1.0)), "loss")
    assert (unchanged.outcome == Outcome.BLOCK, unchanged.evidence.candidate_runs) == (False, 5)


def test_what_both_sides_have_too_little_of_is_no_pass(perf):
    found = judge(perf, *(replace_loss(version(name, 5), every=200) for name in "ab"))
    assert (found.outcome, found.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA)
    assert "loss has 4 values after warm-up, the policy asks for 8" in check(found, "loss").reason


def replace_loss(made: Version, every: int) -> Version:
    seldom = [run(one.run_id, every=every).series["loss"] for one in made.runs]
    runs = (replace(one, series={**one.series, "loss": its}) for one, its in zip(made.runs, seldom, strict=True))
    return replace(made, runs=tuple(runs))


@pytest.mark.parametrize("sides", [(501, 1), (1, 501)])
def test_a_file_that_begins_where_the_run_was_resumed_is_no_whole_training(perf, sides):
    before, now = sides
    found = judge(perf, version("a", 5, first=before), version("b", 3, first=now, loss=1.075))
    assert check(found, "loss").reason_code is ReasonCode.NOT_COMPARABLE
    assert "begin at different steps (1 and 501)" in check(found, "loss").reason
    whole = judge(perf, version("a", 5, first=501), version("b", 3, first=501))
    assert whole.outcome is Outcome.PASS


@pytest.mark.parametrize("gap", [(101, 801), (401, 701)])
def test_rows_that_are_missing_in_the_middle_move_the_halves(perf, gap):
    found = judge(perf, version("a", 5), version("b", 3, gap=gap, loss=1.09))
    assert check(found, "loss").reason_code is ReasonCode.NOT_COMPARABLE
    assert check(found, "step_time").outcome == Outcome.PASS, "a level that does not change is judged"


@pytest.mark.parametrize("metric", ["step_time", "step_time_drift"])
def test_times_that_grow_on_the_way_are_compared_over_the_same_part(perf, metric):
    found = judge(perf, version("a", 5, longer=0.5), version("b", 3, longer=0.5, first=501))
    assert check(found, metric).reason_code is ReasonCode.NOT_COMPARABLE
    assert "begin at different steps (1 and 501)" in check(found, metric).reason
    assert "changes on the way" in check(found, metric).reason
    level = judge(perf, version("a", 5), version("b", 3, first=501))
    assert check(level, metric).outcome == Outcome.PASS


def test_runs_that_end_before_they_give_a_number_are_not_left_out_in_silence(perf):
    """Four of five candidates stop at step 60, and nothing says that they failed."""

    def stopped(one):
        held = {"step_time": Series(name="step_time", steps=np.arange(1, 61), values=np.full(60, 0.1))}
        return replace(one, series=held, last_step=60)

    whole = version("b", 5)
    some = replace(whole, runs=tuple(stopped(one) if at < 4 else one for at, one in enumerate(whole.runs)))
    found = judge(perf, version("a", 5), some)
    assert found.outcome == Outcome.INCONCLUSIVE
    assert "the runs end at different steps (60 and 1000): if one failed" in check(found, "step_time").reason


def test_a_run_without_the_metric_is_no_shorter_run_and_hides_nothing(perf):
    """One of the candidate's runs made no evaluation; the others' last one was before the end. The worst run of a side
    does not get past by saying nothing; a baseline's run may, and so may one whose seed was run again."""
    evaluated = Series(name="eval_loss", steps=np.array([400, 850]), values=np.array([0.6, 0.5]))

    def side(name, without):
        runs = [run(f"{name}{i}") for i in range(4)]
        with_it = [replace(one, series={**one.series, "eval_loss": evaluated}) for one in runs]
        return Version(model="m", version=name, runs=tuple(runs[:without] + with_it[without:]))

    found = check(judge(perf, side("a", 0), side("b", 1)), "eval_loss")
    assert (found.outcome, found.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA)
    assert found.reason.endswith("; but 1 candidate run finished without enough of it to judge")
    assert check(judge(perf, side("a", 1), side("b", 0)), "eval_loss").outcome == Outcome.PASS
    again = side("b", 1)
    repeated = replace(again, runs=tuple(replace(one, seed=max(1, at)) for at, one in enumerate(again.runs)))
    assert check(judge(perf, side("a", 0), repeated), "eval_loss").outcome == Outcome.PASS


def test_iterations_are_counted_whatever_steps_they_have(perf):
    """Twice as many passes over each rollout: the steps of an iteration double, and its time does."""

    def side(name, count, per_iteration, seconds):
        runs = []
        for i in range(count):
            rng = np.random.default_rng([i, per_iteration])
            values = seconds * np.linspace(1, 1.2, 100) * np.exp(rng.normal(0, 0.02, 100))
            series = Series(name="iteration_time", steps=per_iteration * np.arange(1, 101), values=values)
            one = run(f"{name}{i}")
            runs.append(replace(one, series={**one.series, "iteration_time": series}, workload={"algo": "ppo"}))
        return Version(model="m", version=name, runs=tuple(runs))

    assert check(judge(perf, side("a", 5, 4, 1.0), side("b", 3, 8, 2.0)), "iteration_time").outcome == Outcome.BLOCK
    alike = check(judge(perf, side("a", 5, 4, 1.0), side("b", 3, 4, 1.0)), "iteration_time")
    assert alike.outcome == Outcome.PASS


def policy_run(name: str, updates: int, *, rollouts: int = 50, kl: float = 6.0, cost: float = 40.0) -> Run:
    """Of PPO on a CPU: a row for every optimizer step, and of what comes once per rollout at the last of them."""
    rng = np.random.default_rng(list(name.encode()))
    steps, closing = np.arange(1, rollouts * updates + 1), updates * np.arange(1, rollouts + 1)

    def series(metric: str, at: Any, level: Any) -> Series:
        return Series(name=metric, steps=np.array(at), values=level * np.exp(rng.normal(0, 0.01, len(at))))

    rise = np.linspace(0.1, 1, rollouts)
    held = [
        series("step_cost", steps, 10.0), series("step_cpu_time", steps, 0.02), series("step_time", steps, 0.02),
        series("peak_memory", steps, 900.0), series("learning_rate", steps, 1e-3), series("grad_norm", steps, 1.0),
        *(series(metric, closing, cost) for metric in ("iteration_cost", "iteration_time", "iteration_cpu_time")),
        series("kl", closing, kl * rise), series("reward_mean", closing, 5 * rise),
        series("eval_reward", closing[-1:], 5.0),
    ]  # fmt: skip
    return Run(
        run_id=name, seed=None, series={one.name: one for one in held}, completed=True, learned=True,
        last_step=int(steps[-1]), workload={"algo": "ppo"}, hardware={"backend": "cpu"},
    )  # fmt: skip


def policy_version(name: str, updates: int, **how: Any) -> Version:
    return Version(model="m", version=name, runs=tuple(policy_run(f"{name}{i}", updates, **how) for i in range(3)))


def test_a_policy_is_compared_by_its_rollouts_and_what_broke_comes_before_what_it_costs():
    """Without a KL penalty, and twice as many passes over each rollout: the answers are no others in number."""
    found = judge(load_policy("smoke"), policy_version("a", 4), policy_version("b", 8, kl=70.0, cost=65.0))
    assert found.reason.startswith("KL 4.")
    assert found.reason.endswith("; also iteration_cost.")
    assert (check(found, "kl").outcome, check(found, "iteration_cost").outcome) == (Outcome.BLOCK, Outcome.BLOCK)
    unchanged = judge(load_policy("smoke"), policy_version("a", 4), policy_version("b", 8))
    assert {check(unchanged, one).outcome for one in ("kl", "eval_reward", "iteration_cost")} == {Outcome.PASS}


def test_fewer_rollouts_are_another_part_of_a_training_whatever_their_steps():
    found = judge(load_policy("smoke"), policy_version("a", 4), policy_version("b", 6, rollouts=25))
    assert check(found, "eval_reward").reason_code is ReasonCode.NOT_COMPARABLE
    assert "end at different rollouts (25 and 50)" in check(found, "eval_reward").reason
    assert check(found, "kl").outcome not in (Outcome.PASS, Outcome.BLOCK)
