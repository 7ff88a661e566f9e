"""Rewards of several functions: other weights are no other quality, and no function is lost in the sum."""

from __future__ import annotations

import numpy as np
import pytest
from verdicts import check

from canary_mlflow.gates import Outcome
from canary_mlflow.gates.judge import judge
from canary_mlflow.gates.model.verdict import CheckOutcome


@pytest.fixture
def side(make_version):
    """A version of GRPO whose functions end at these levels, weighed so; `without`: what it does not measure."""

    def made(name, weights, without=(), **levels):
        rng = np.random.default_rng(list(name.encode()))
        means = {one: level + rng.normal(0, 0.02, 100) for one, level in levels.items()}
        total = sum(weights[one] * means[one] for one in levels)
        series = {f"trl/rewards/{one}/mean": means[one] for one in levels if one not in without}
        facts = {f"rewards.{one}": str(weights[one]) for one in levels if one not in without}
        return make_version(
            name,
            series_={**series, "reward_mean": total, "eval_loss": None},
            workload={"algo": "grpo", "max_steps": "100"},
            facts=facts,
        )

    return made


EVEN = {"right": 1.0, "form": 1.0}


@pytest.mark.parametrize("times", [0.5, 3.0])
def test_the_same_rewards_on_another_scale_pass(smoke, side, times):
    """GRPO divides by the spread of a group, so it learns the same."""
    before, now = (
        side("a", EVEN, right=0.6, form=0.4),
        side("b", {k: times * v for k, v in EVEN.items()}, right=0.6, form=0.4),
    )
    found = check(judge(smoke, before, now), "reward_mean")
    assert found.outcome is CheckOutcome.PASS
    assert found.evidence.candidate == pytest.approx(1.0, abs=0.02)
    assert f"form 1 → {times:g}" in " ".join(found.notes)


def test_weights_that_hide_a_loss_do_not_pass(smoke, side):
    """The sum rose from 1.0 to 1.65, as form weighs three times as much."""
    before, now = side("a", EVEN, right=0.6, form=0.4), side("b", {"right": 0.0, "form": 3.0}, right=0.1, form=0.55)
    found = judge(smoke, before, now)
    assert found.outcome is Outcome.BLOCK
    assert check(found, "reward_mean").evidence.candidate == pytest.approx(0.65, abs=0.02)


def test_a_function_that_was_removed_leaves_the_verdict_open(smoke, side):
    before, now = side("a", EVEN, right=0.6, form=0.4), side("b", EVEN, without=("right",), right=0.6, form=0.6)
    found = check(judge(smoke, before, now), "reward_mean")
    assert found.outcome is CheckOutcome.INCONCLUSIVE
    assert "right 1 → 0" in found.reason
    assert "weight 0" in found.reason


def test_another_order_and_a_function_without_weight_change_nothing(smoke, side):
    before, now = side("a", {**EVEN, "log": 0.0}, right=0.6, form=0.4, log=0.0), side("b", EVEN, form=0.4, right=0.6)
    found = check(judge(smoke, before, now), "reward_mean")
    assert found.outcome is CheckOutcome.PASS
    assert not found.notes or not any("weights" in note for note in found.notes)


def test_what_one_function_lost_and_another_gained_is_said(smoke, side):
    found = judge(smoke, side("a", EVEN, right=0.6, form=0.4), side("b", EVEN, right=0.3, form=0.7))
    assert found.outcome is Outcome.PASS
    assert check(found, "reward_mean: right").outcome is CheckOutcome.WARN
    assert check(found, "reward_mean: form").outcome is CheckOutcome.PASS
    assert "Beyond a limit that only warns: reward_mean: right" in found.reason
    assert "by what training gained" in check(found, "reward_mean").reason
    assert "by what training gained" not in check(found, "reward_mean: right").reason


def test_rewards_of_one_function_are_the_sum(smoke, side):
    found = judge(smoke, side("a", EVEN, right=0.6), side("b", EVEN, right=0.6))
    assert not [one for one in found.checks if one.metric.startswith("reward_mean:")]


def test_a_function_that_gave_no_number_adds_nothing(smoke, side):
    """As in TRL's own sum, for a step whose rows are none of its business."""
    silent = np.where(np.arange(100) % 2, 0.4, np.nan)
    before, now = (
        side(name, weights, right=0.6, form=silent)
        for name, weights in (("a", EVEN), ("b", {"right": 2.0, "form": 2.0}))
    )
    found = check(judge(smoke, before, now), "reward_mean")
    assert found.evidence.candidate == pytest.approx(0.8, abs=0.03)
    assert found.outcome is CheckOutcome.PASS
