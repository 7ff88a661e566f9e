"""The course of the learning rate: exact, whatever the seeds, however it is logged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import cos, pi
from typing import Any

import numpy as np
import pytest
from verdicts import check

from canary_mlflow.gates import CheckOutcome, Outcome, ReasonCode, Series, Version, judge
from canary_mlflow.gates.facts.courses import course_differences
from canary_mlflow.gates.facts.exact import FACTS

SETTINGS = {"train.learning_rate": "0.003", "train.weight_decay": "0"}
PEAK = 3e-3
Course = Callable[[float], float]


def linear(step: float) -> float:
    return PEAK * min(step / 10, (100 - step) / 90)


def cosine(step: float) -> float:
    return PEAK * (step / 10 if step < 10 else (1 + cos(pi * (step - 10) / 90)) / 2)


def stopped(step: float) -> float:
    return linear(step) if step < 60 else 0.0


@pytest.fixture(scope="session")
def side(make_run: Any) -> Any:
    """Three runs that log this course at every so many steps."""

    def made(name: str, first: int, *courses: Course, every: int = 1, **own: Any) -> Version:
        steps = np.arange(every, 101, every)
        runs = []
        for i in range(3):
            course = courses[i % len(courses)]
            rate = Series(name="learning_rate", steps=steps, values=np.array([course(step) for step in steps]))
            run = make_run(f"{name}{i}", seed=first + i, **{"configuration": SETTINGS} | own)
            runs.append(replace(run, series={**run.series, "learning_rate": rate}))
        return Version(model="m", version=name, runs=tuple(runs))

    return made


@pytest.mark.parametrize(
    ("course", "said"),
    [
        (stopped, "learning rate 0.00133 → 0 at step 60, another course from step 60 on"),
        (lambda _: PEAK, "learning rate 0 → 0.003 at step 100, another course from step 1 on"),
        (lambda step: 10 * linear(step), "learning rate 0.003 → 0.03 at step 10, another course from step 1 on"),
        (cosine, "learning rate 0.00233 → 0.00265 at step 30, another course from step 12 on"),
    ],
)
def test_another_course_blocks_where_the_settings_are_the_same(smoke: Any, side: Any, course: Any, said: str) -> None:
    verdict = judge(smoke, side("a", 0, linear), side("b", 10, course))
    assert (verdict.outcome, verdict.reason_code) == (Outcome.BLOCK, ReasonCode.HARD_GATE)
    assert said in check(verdict, FACTS).reason


@pytest.mark.parametrize("course", [linear, cosine])
@pytest.mark.parametrize("every", [(1, 1), (1, 5), (5, 1), (10, 7), (7, 10), (10, 25)])
@pytest.mark.parametrize("by", [-1, 0, 1])
def test_a_step_earlier_or_later_or_logged_at_other_steps_is_the_same_course(
    smoke: Any, side: Any, course: Course, every: tuple[int, int], by: int
) -> None:
    def moved(step: float) -> float:
        return max(0.0, course(max(0, step + by)))

    verdict = judge(smoke, side("a", 0, course, every=every[0]), side("b", 10, moved, every=every[1]))
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, verdict.reason)
    assert all(one.rounding for one in verdict.differences if one.key == "course.learning_rate")


@pytest.mark.parametrize("every", [(1, 10), (10, 1), (10, 7), (25, 10)])
def test_a_rate_that_falls_to_zero_is_seen_however_it_is_logged(smoke: Any, side: Any, every: Any) -> None:
    verdict = judge(smoke, side("a", 0, linear, every=every[0]), side("b", 10, stopped, every=every[1]))
    assert "→ 0 at step" in check(verdict, FACTS).reason
    assert verdict.outcome is Outcome.BLOCK


def test_a_single_run_that_leaves_the_course_is_named(smoke: Any, side: Any) -> None:
    verdict = judge(smoke, side("a", 0, linear), side("b", 10, linear, linear, stopped))
    assert "from step 60 on in seed 12" in check(verdict, FACTS).reason


@pytest.mark.parametrize(
    ("setting", "outcome"),
    [
        *((setting, Outcome.PASS) for setting in ("train.learning_rate", "lr_scheduler_type", "max_steps")),
        *((setting, Outcome.BLOCK) for setting in ("train.weight_decay", "dataloader_num_workers", "lora_r")),
    ],
)
def test_only_a_setting_of_the_schedule_explains_it(smoke: Any, side: Any, setting: str, outcome: Outcome) -> None:
    own = {"configuration": {**SETTINGS, setting: "other"}}
    assert judge(smoke, side("a", 0, linear), side("b", 10, cosine, **own)).outcome is outcome


def test_a_schedule_that_follows_the_training_is_no_exact_one(smoke: Any, side: Any) -> None:
    """A plateau comes at another step in each run."""
    courses = [lambda step, at=at: PEAK if step < at else PEAK / 10 for at in (40, 60, 80)]
    assert judge(smoke, side("a", 0, *courses), side("b", 10, *reversed(courses[:2]))).outcome is Outcome.PASS


def test_without_a_configuration_nobody_knows_whether_it_was_meant(smoke: Any, side: Any) -> None:
    verdict = judge(smoke, side("a", 0, linear, configuration={}), side("b", 10, stopped, configuration={}))
    assert (verdict.outcome, verdict.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.FACTS_DIFFER)
    assert "no configuration says whether that was set" in verdict.reason
    same = judge(smoke, side("a", 0, linear, configuration={}), side("b", 10, linear, configuration={}))
    assert same.outcome is Outcome.PASS
    assert not [one for one in same.checks if one.metric == FACTS and one.outcome is not CheckOutcome.PASS]


def test_a_champion_that_did_not_record_it_says_nothing(smoke: Any, side: Any, make_version: Any) -> None:
    before = make_version("a", seeds=[0, 1, 2], configuration=SETTINGS)
    assert judge(smoke, before, side("b", 10, stopped)).outcome is Outcome.PASS


def test_a_policy_that_makes_more_steps_on_each_rollout_stretches_its_schedule(side: Any) -> None:
    """Twice the epochs are what was changed; that the rate falls later follows from it."""

    def paced(made: Version, updates: int) -> list[Any]:
        at = np.arange(updates, 101, updates)
        closed = Series(name="iteration_time", steps=at, values=np.ones(len(at)))
        return [replace(run, series={**run.series, "iteration_time": closed}) for run in made.runs]

    before, after = side("a", 0, linear), side("b", 10, cosine)
    assert course_differences(paced(before, 4), paced(after, 4), FACTS)
    assert not course_differences(paced(before, 4), paced(after, 8), FACTS)
