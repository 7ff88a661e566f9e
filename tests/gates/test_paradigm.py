"""What decides about learning: the evaluation, else the loss where it says something, else the reward."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from verdicts import check

from canary_mlflow.gates import Outcome, Series, Version, judge
from canary_mlflow.gates.model.paradigm import Paradigm, paradigm_of

QUIET = {"eval_loss": None, "loss": None}


@pytest.fixture
def side(make_run):
    """Five runs; series as given, each with a little noise of its run."""

    def build(name, algo, **levels):
        rng = np.random.default_rng(list(name.encode()))
        workload = {"algo": algo} if algo else {}
        runs = []
        for seed in range(5):
            given = {
                metric: level + abs(level) * rng.normal(0, 0.01, 1 if metric.startswith("eval") else 100)
                for metric, level in levels.items()
            }
            runs.append(make_run(f"{name}{seed}", seed, series_={**QUIET, **given}, workload=workload))
        return Version(model="m", version=name, runs=tuple(runs))

    return build


@pytest.mark.parametrize("algo", ["ppo", "PPO", "grpo", "rloo", ""])
def test_a_lower_held_out_reward_blocks_whatever_the_algorithm_is_called(smoke, side, algo):
    found = judge(smoke, side("a", algo, eval_reward=5.0, kl=4.0), side("b", algo, eval_reward=1.0, kl=4.0))
    assert (found.outcome, check(found, "eval_reward").outcome) == (Outcome.BLOCK, Outcome.BLOCK)


@pytest.mark.parametrize("algo", ["ppo", "grpo", ""])
def test_without_an_evaluation_the_training_reward_decides(smoke, side, algo):
    found = judge(smoke, side("a", algo, reward_mean=5.0, kl=4.0), side("b", algo, reward_mean=1.0, kl=4.0))
    assert (found.outcome, check(found, "reward_mean").outcome) == (Outcome.BLOCK, Outcome.BLOCK)
    evaluated = {"eval_reward": 5.0, "kl": 4.0}
    found = judge(smoke, side("a", algo, reward_mean=5.0, **evaluated), side("b", algo, reward_mean=1.0, **evaluated))
    assert (found.outcome, check(found, "reward_mean").outcome) == (Outcome.PASS, "WARN"), "the held-out one does"


@pytest.mark.parametrize(
    ("algo", "besides"),
    [("kto", {"kl": 4.0}), ("reward", {"reward_mean": 1.0}), ("", {"reward_mean": 1.0, "reward_margin": 0.7})],
)
def test_what_learns_from_preferences_is_judged_by_its_loss(smoke, side, algo, besides):
    found = judge(smoke, side("a", algo, loss=0.5, **besides), side("b", algo, loss=0.75, **besides))
    assert check(found, "loss").outcome == Outcome.BLOCK


@pytest.mark.parametrize(
    ("algo", "held_out", "training", "good", "bad"),
    [("sft", "eval_loss", "loss", 0.5, 0.75), ("ppo", "eval_reward", "reward_mean", 5.0, 1.0)],
)
def test_an_evaluation_of_the_untrained_model_alone_decides_not_alone(smoke, side, algo, held_out, training, good, bad):
    """As `eval_on_start` leaves it, or MLflow, whose step is 0 where none is given: its place may mean either."""

    def at(step, name, level):
        made = side(name, algo, **{held_out: good, training: level})
        moved = Series(name=held_out, steps=np.array([step]), values=made.runs[0].series[held_out].values)
        return replace(made, runs=tuple(replace(r, series={**r.series, held_out: moved}) for r in made.runs))

    found = judge(smoke, at(0, "a", good), at(0, "b", bad))
    assert (check(found, training).outcome, check(found, held_out).outcome) == (Outcome.BLOCK, Outcome.PASS)
    assert any("nothing from the second half of the training" in note for note in found.notes)
    assert judge(smoke, at(0, "a", good), at(0, "b", good)).outcome == Outcome.PASS
    assert judge(smoke, at(100, "a", good), at(100, "b", bad)).outcome == Outcome.PASS, "the held-out one decides"


@pytest.mark.parametrize("algo", ["distill", ""])
def test_a_kl_alone_is_no_reason_to_leave_the_loss_out(smoke, side, algo):
    found = judge(smoke, side("a", algo, loss=0.5, kl=4.0), side("b", algo, loss=0.75, kl=4.0))
    assert check(found, "loss").outcome == Outcome.BLOCK


@pytest.mark.parametrize("algo", ["ppo", ""])
def test_a_score_decides_where_no_reward_was_recorded(smoke, side, algo):
    found = judge(smoke, side("a", algo, score_mean=3.0, kl=4.0), side("b", algo, score_mean=-3.0, kl=4.0))
    assert check(found, "score_mean").outcome == Outcome.BLOCK


def test_a_loss_of_rewards_decides_nothing_under_any_name(smoke, side):
    """An evaluation loss of GRPO is about 0, and no number of runs would resolve it."""
    sides = [side(name, "dapo", eval_loss=level, reward_mean=5.0) for name, level in (("a", 0.002), ("b", -0.003))]
    assert judge(smoke, *sides).outcome == Outcome.PASS


def test_a_series_that_only_the_candidate_adds_makes_no_reinforcement_learning(smoke, side):
    found = judge(smoke, side("a", "", loss=0.5), side("b", "", loss=0.75, kl=4.0))
    assert check(found, "loss").outcome == Outcome.BLOCK


def test_an_iteration_is_judged_whatever_the_algorithm_is_called(smoke, side):
    def made(name, seconds):
        return side(name, "grpo", iteration_time=seconds, kl=4.0, eval_reward=5.0)

    assert check(judge(smoke, made("a", 1.0), made("b", 1.5)), "iteration_time").outcome == Outcome.BLOCK


@pytest.mark.parametrize(
    ("algo", "metrics", "expected"),
    [
        ("sft", ("kl",), Paradigm.SUPERVISED),
        ("GRPO", (), Paradigm.REINFORCEMENT),
        ("", ("loss",), Paradigm.SUPERVISED),
        ("", ("loss", "kl"), Paradigm.SUPERVISED),
        ("dapo", ("loss", "reward_mean"), Paradigm.REINFORCEMENT),
        ("", ("policy_loss", "kl"), Paradigm.REINFORCEMENT),
        ("RewardTrainer", ("loss", "reward_mean"), Paradigm.SUPERVISED),
        ("simpo", ("kl", "reward_margin"), Paradigm.SUPERVISED),
        ("OnlineDPO", ("loss", "score_mean", "reward_margin"), Paradigm.REINFORCEMENT),
        ("", ("loss", "reward_mean", "reward_std", "reward_accuracy"), Paradigm.REINFORCEMENT),
        ("DAPO", ("loss", "reward_mean", "reward_accuracy"), Paradigm.REINFORCEMENT),
        *(
            (name, ("loss",), Paradigm.REINFORCEMENT)
            for name in ("REINFORCE++", "Dr. GRPO", "gspo-token", "RecurrentPPO")
        ),
        *((name, ("reward_mean",), Paradigm.SUPERVISED) for name in ("SPPO", "MySFT", "rm")),
        *((name, ("loss",), Paradigm.SUPERVISED) for name in ("exporter", "rmsprop")),
        ("", ("loss", "reward_mean", "reward_accuracy"), Paradigm.REINFORCEMENT),
        ("", ("loss", "reward_accuracy"), Paradigm.SUPERVISED),
    ],
)
def test_learning_by_name_else_by_what_was_recorded(algo, metrics, expected):
    assert paradigm_of(algo, metrics) is expected
