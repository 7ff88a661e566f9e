"""Awkward data: an outcome that docs/policy.md states, never a traceback."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from verdicts import check

from canary_mlflow.gates import CheckOutcome, Outcome, ReasonCode, Role, Run, Series, Version, judge, verdict_to_dict
from canary_mlflow.policies import load_policy

AWKWARD = {
    "no runs": {"count": 0},
    "no series": {
        "series_": dict.fromkeys(
            ["step_time", "step_cpu_time", "step_cost", "tokens", "peak_memory", "loss", "grad_norm", "eval_loss"]
        )
    },
    "empty series": {"series_": {"step_time": []}},
    "all NaN": {"series_": {"step_time": [np.nan] * 100}},
    "largest float": {"series_": {"step_time": [sys.float_info.max] * 100}},
    "zero times": {"series_": {"step_time": np.zeros(100)}},
    "negative times": {"series_": {"step_time": np.full(100, -1.0)}},
    "zero loss": {"series_": {"eval_loss": [0.0], "loss": np.zeros(100)}},
    "negative loss": {"series_": {"eval_loss": [-0.2]}},
    "largest loss": {"series_": {"eval_loss": [-1e308]}},
    "NaN loss": {"series_": {"eval_loss": [np.nan]}},
    "one step": {"series_": {"step_time": [0.02]}},
    "short run": {"steps": 25},
    "constant": {"series_": {"step_time": np.full(100, 0.02), "eval_loss": [0.58]}},
    "huge": {"factor": {"step_time": 1e290}},
    "tiny": {"factor": {"step_time": 1e-290}},
    "zero memory": {"series_": {"peak_memory": np.zeros(100)}},
    "no seeds and facts": {"workload": {}, "hardware": {}},
}


@pytest.mark.parametrize("name", sorted(AWKWARD))
@pytest.mark.parametrize("sides", ["baseline", "candidate", "both"])
@pytest.mark.filterwarnings("error")
def test_awkward_data_has_an_outcome_and_no_traceback(smoke, make_version, name, sides):
    baseline = make_version("a", **({} if sides == "candidate" else AWKWARD[name]))
    verdict = judge(smoke, baseline, make_version("b", **({} if sides == "baseline" else AWKWARD[name])))
    json.dumps(verdict_to_dict(verdict), allow_nan=False)
    assert verdict.reason


@pytest.mark.parametrize(
    ("data", "metric", "outcome", "words"),
    [
        ("zero times", "step_time", CheckOutcome.INCONCLUSIVE, "step time of 0 ms has no relative change"),
        ("negative loss", "eval_loss", CheckOutcome.PASS, "evaluation loss -0.200 → -0.200"),
        (
            "short run",
            "step_time",
            CheckOutcome.INCONCLUSIVE,
            "15 values after warm-up, the policy asks for 20",
        ),
        ("all NaN", "step_time", CheckOutcome.INCONCLUSIVE, "step time has no finite value"),
        ("constant", "step_time", CheckOutcome.PASS, "(0 %, limit +15 %)"),
    ],
)
def test_what_awkward_data_comes_to(smoke, make_version, data, metric, outcome, words):
    verdict = judge(smoke, make_version("a", **AWKWARD[data]), make_version("b", **AWKWARD[data]))
    assert check(verdict, metric).outcome is outcome
    assert words in check(verdict, metric).reason


def all_gates(policy):
    return replace(policy, rules=tuple(replace(rule, role=Role.GATE) for rule in policy.rules))


@pytest.mark.parametrize(
    ("metric", "before", "after", "words"),
    [
        ("eval_loss", 0.58, -0.58, "evaluation loss 0.580 → -0.580: too good to be believed"),
        ("eval_loss", 0.58, 0.0, "evaluation loss of run b0 is exactly 0 at 1 of 1 steps, before at none"),
        ("eval_loss", 0.58, -50.0, "evaluation loss 0.580 → -50.0: too good to be believed"),
        ("eval_accuracy", 0.8, 80.0, "is 80.0, others are not above 1: perhaps percent"),
        ("eval_accuracy", 80.0, 81.0, "is 81.0: percent, by a limit of 0.1; expected shares of 1, or give rules."),
        ("peak_memory", 9e8, 9e8, "is 900000000 MiB: perhaps bytes; expected MiB"),
    ],
)
def test_better_by_a_slip_of_the_pen_is_no_pass(smoke, make_version, metric, before, after, words):
    verdict = judge(
        all_gates(smoke),
        make_version("a", series_={metric: [before]}),
        make_version("b", series_={metric: [after]}),
    )
    assert check(verdict, metric).reason_code is ReasonCode.SUSPECT_DATA
    assert words in check(verdict, metric).reason


@pytest.mark.parametrize(
    ("metric", "before", "after"),
    [("eval_loss", 0.5, -0.05), ("eval_accuracy", 0.8, 1.0)],
)
def test_what_is_no_slip_passes(smoke, make_version, metric, before, after):
    """A loss that really goes below zero, every answer right."""
    verdict = judge(
        all_gates(smoke),
        make_version("a", series_={metric: [before]}),
        make_version("b", series_={metric: [after]}),
    )
    assert check(verdict, metric).outcome is CheckOutcome.PASS


def test_percents_are_judged_by_a_limit_in_percent(smoke_with, make_version):
    policy = smoke_with(rules={"eval_accuracy": {"role": "gate", "margin": 10.0, "prior": 3.0}})
    before, now = (make_version(n, series_={"eval_accuracy": [a]}) for n, a in (("a", 80.0), ("b", 81.0)))
    fallen = make_version("c", series_={"eval_accuracy": [40.0]})
    assert check(judge(policy, before, now), "eval_accuracy").outcome is CheckOutcome.PASS
    assert check(judge(policy, before, fallen), "eval_accuracy").outcome is CheckOutcome.BLOCK


def test_a_clock_that_stands_still_at_some_steps_is_no_speed(smoke, make_version):
    """Every second step took no time at all, and the others half as much again."""
    verdict = judge(smoke, make_version("a"), make_version("b", series_={"step_time": [0.0, 0.03] * 50}))
    assert check(verdict, "step_time").reason_code is ReasonCode.SUSPECT_DATA
    assert "step time of run b0 is zero or less at 45 of 90 steps" in check(verdict, "step_time").reason
    once = judge(smoke, make_version("a"), make_version("b", series_={"step_time": [0.02] * 50 + [0.0] + [0.02] * 49}))
    assert check(once, "step_time").reason_code is not ReasonCode.SUSPECT_DATA


@pytest.mark.parametrize(
    ("tier", "metric", "before", "now", "outcome"),
    [
        ("smoke", "reward_mean", 0.84, 0.83, "PASS"),
        ("smoke", "reward_mean", 0.84, 0.35, "BLOCK"),
        ("smoke", "eval_reward", 0.7, 0.2, "BLOCK"),  # measured once in a run
        ("perf", "eval_reward", 0.75, 0.4, "BLOCK"),
        ("perf", "reward_mean", 0.6, 0.2, "BLOCK"),  # 80 % and 60 % right, counted as 1 and -1
        ("nightly", "reward_mean", 0.8, 0.6, "BLOCK"),
        ("smoke", "reward_mean", 1.2, 1.19, "PASS"),  # right answers and half a point for their format
        ("smoke", "reward_mean", 1.2, 0.7, "BLOCK"),
        ("perf", "reward_mean", 0.6, -0.9, "BLOCK"),
        ("perf", "reward_mean", 5.0, 4.9, "PASS"),  # scores of a reward model, by the limit as it is
        ("smoke", "reward_mean", 3.84, 3.35, "PASS"),
    ],
)
def test_a_limit_for_scores_is_narrower_for_rewards_of_right_and_wrong(
    make_version, tier, metric, before, now, outcome
):
    def side(name, level):
        rewards = [level] if metric == "eval_reward" else level + np.linspace(-0.6, 0.1, 100)
        workload = {"algo": "grpo", "max_steps": "100"}
        return make_version(name, 8, series_={metric: rewards, "eval_loss": None}, workload=workload)

    found = judge(load_policy(tier), side("a", before), side("b", now))
    assert found.outcome == outcome
    assert ("by what training gained" in check(found, metric).reason) == (before < 2)


def test_scores_of_a_reward_model_that_end_near_1_keep_their_limit(smoke, make_version):
    def side(name):
        series = {"eval_reward": [1.5], "reward_mean": np.linspace(-16, 1.5, 100), "eval_loss": None}
        return make_version(name, series_=series, workload={"algo": "ppo", "max_steps": "100"})

    found = check(judge(smoke, side("a"), side("b")), "eval_reward")
    assert "by what training gained" not in found.reason


def test_a_limit_of_ones_own_on_such_rewards_is_kept(smoke, make_version):
    own = replace(smoke, rules=tuple(
        replace(rule, margin=0.2) if rule.metric == "reward_mean" else rule for rule in smoke.rules
    ))  # fmt: skip

    def side(name, level):
        series = {"reward_mean": np.full(100, level), "eval_loss": None}
        return make_version(name, series_=series, workload={"algo": "grpo", "max_steps": "100"})

    assert check(judge(own, side("a", 0.84), side("b", 0.84)), "reward_mean").evidence.margin == pytest.approx(-0.2)


def test_a_margin_of_nothing_and_a_candidate_beyond_measure_end_in_a_verdict(smoke, make_version):
    none = replace(smoke, rules=tuple(replace(rule, margin=0.0) for rule in smoke.rules))
    assert judge(none, make_version("a"), make_version("b")).reason
    far = judge(
        smoke, make_version("a", series_={"eval_loss": [-0.1]}), make_version("b", series_={"eval_loss": [1e200]})
    )
    assert check(far, "eval_loss").outcome is not CheckOutcome.PASS
    tiny = judge(smoke, make_version("a"), make_version("b", series_={"eval_loss": [1e-300]}))
    assert len(check(tiny, "eval_loss").reason) < 200


def test_dropped_values_and_unequal_lengths_are_said(smoke, make_version):
    holes = np.where(np.arange(100) % 10 == 9, np.nan, 0.02)
    short = judge(smoke, make_version("a"), make_version("b", series_={"step_time": holes}))
    assert "30 non-finite values left out" in check(short, "step_time").notes
    unequal = judge(smoke, make_version("a"), make_version("b", series_={"step_time": np.full(60, 0.02)}))
    assert "unequal lengths: 100 against 60 values" in check(unequal, "step_time").notes


def test_a_loss_that_ends_in_zeros_is_suspect(smoke, make_version):
    """As where every label is masked, or an overflow was logged as 0."""
    zeros = {"loss": np.r_[np.linspace(2, 1, 70), np.zeros(30)], "eval_loss": None}
    verdict = judge(
        smoke, make_version("a", series_={**zeros, "loss": np.linspace(2, 1, 100)}), make_version("b", series_=zeros)
    )
    assert check(verdict, "loss").reason_code is ReasonCode.SUSPECT_DATA
    assert "exactly 0 at 30 of 100 steps, before at none" in check(verdict, "loss").reason
    same = judge(smoke, make_version("a", series_=zeros), make_version("b", series_=zeros))
    assert check(same, "loss").reason_code is not ReasonCode.SUSPECT_DATA


def test_an_evaluation_long_before_the_end_leaves_the_loss_to_decide(perf):
    """eval_steps=200 of 500: the last evaluation stands at 400, and what came after it shows in the loss alone."""

    def side(name, factor):
        made = []
        for index in range(4):
            rng = np.random.default_rng([*name.encode(), index])
            loss = np.linspace(2, 1, 500) * np.exp(rng.normal(0, 0.005) + rng.normal(0, 0.03, 500))
            loss[400:] *= factor
            held = {"step_time": np.full(500, 0.1) * np.exp(rng.normal(0, 0.01, 500)), "loss": loss}
            series = {key: Series.from_pairs(key, enumerate(values, 1)) for key, values in held.items()}
            evaluated = [(200, 1.6 * np.exp(rng.normal(0, 0.005))), (400, 1.2 * np.exp(rng.normal(0, 0.005)))]
            series["eval_loss"] = Series.from_pairs("eval_loss", evaluated)
            made.append(Run(run_id=f"{name}{index}", seed=None, series=series, last_step=500))
        return Version(model="m", version=name, runs=tuple(made))

    found = judge(perf, side("a", 1.0), side("b", 1.4))
    assert (check(found, "loss").outcome, check(found, "eval_loss").outcome) == (CheckOutcome.BLOCK, CheckOutcome.PASS)
    assert judge(perf, side("a", 1.0), side("c", 1.0)).outcome is Outcome.PASS


def test_a_limit_below_its_prior_is_said_to_be_so(perf, make_version):
    """Quiet runs, a limit of one's own, and the shipped prior of another unit: no number of runs decides by that."""
    rules = tuple(replace(rule, margin=0.05) if rule.name == "reward_mean" else rule for rule in perf.rules)

    def side(name, count):
        workload = {"algo": "grpo", "max_steps": "100"}
        rewards = 0.7 + np.random.default_rng([*name.encode()]).normal(0, 0.02, 100)
        return make_version(name, count, series_={"reward_mean": rewards, "eval_loss": None}, workload=workload)

    found = check(judge(replace(perf, rules=rules), side("a", 5), side("b", 3)), "reward_mean")
    assert "its prior of 0.2 is no less than its limit: state a smaller one, or let calibrate find it" in found.reason
