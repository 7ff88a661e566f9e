"""The watch: what it says about healthy runs and failing ones, when, and how often."""

from __future__ import annotations

import math
import sys
from collections import Counter

import pytest
from watch_runs import FAILURES, Rows, constant, fail, policy, rl, said, sft, watch

from canary_mlflow.gates.watch import Level, Watch

NAN = math.nan


def test_false_alarms_are_as_rare_as_said() -> None:
    """Three healthy regimes, 20 runs of 400 rows each: 24 000 rows."""
    regimes = [
        lambda seed: sft(seed),
        lambda seed: rl(seed, kl=0.05, entropy=4.0),
        lambda seed: rl(seed, kl=30.0, entropy=0.3, grad=300.0),
    ]
    levels: Counter[Level] = Counter()
    for number, regime in enumerate(regimes):
        for seed in range(20):
            levels.update(one.level for one in watch(regime(1000 * number + seed)).warnings)
    assert levels[Level.STOP] == levels[Level.CRITICAL] == 0
    assert levels[Level.WARN] <= 12  # 0.5 in 1000 rows


@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_warned_of_before_they_are_complete(name: str) -> None:
    healthy, onset, length, streams = FAILURES[name]
    leads = []
    for seed in range(15):
        rows = fail(healthy(seed), onset, length, **streams)
        seen = Watch(policy())
        for step, row in enumerate(rows):
            seen.observe(step, row)
        after = [one.step for one in seen.warnings if one.step >= onset]
        assert after, f"{name}, seed {seed}: nothing said"
        leads.append((onset + length - after[0]) / length)
    assert sorted(leads)[len(leads) // 2] >= 0.3


def test_a_reward_that_falls_where_the_log_names_another_stage_is_no_collapse() -> None:
    """As in a public log of three stages; one that changes with each row, or comes back, is none."""

    def course(name: str, stages: list[float]) -> Watch:
        rewards = [0.1 * (row % 3) + (min(row, 60) / 20 if row < 100 else 0.2) for row in range(200)]
        return watch([{"reward_mean": reward, name: stage} for reward, stage in zip(rewards, stages, strict=True)])

    planned = [float(row >= 100) for row in range(200)]
    seen = course("trl/curriculum_stage", planned)
    assert seen.verdict == "healthy"
    assert seen.notices == ["another stage from step 101 on (curriculum_stage): what is normal is learned anew"]
    assert course("trl/noise_level", planned).verdict == "failed"
    assert course("trl/phase", [float(row % 20 == 0) for row in range(200)]).verdict == "failed"
    assert course("trl/difficulty", [row / 10 for row in range(200)]).verdict == "failed"


def test_a_kl_that_comes_back_to_where_the_run_has_been_is_no_drift() -> None:
    """A public GRPO run began hundreds of nats from its reference, learned, and stood at ten now and then."""

    def course(first: float) -> Rows:
        levels = [first] * 60 + [0.8] * 200 + [12.0] * 40
        return [{"reward_mean": 1.0 + row / 100, "kl": kl * (1 + 0.1 * (row % 5))} for row, kl in enumerate(levels)]

    assert watch(course(0.8)).verdict == "failed"
    assert watch(course(100.0)).verdict == "healthy"


def test_a_score_whose_every_answer_earns_the_least_never_moved() -> None:
    """As public PPO runs; a run that answers right from its first row on misses now and then."""
    poor = [{"kl": 5.0 + row % 3, "score_mean": -0.1 - 0.003 * (row % 3 == 0)} for row in range(100)]
    assert said(watch(poor)) == [(100, "WARN", "score_mean", "no_learning")]
    solved = [{"kl": 0.5, "reward_mean": 1.0 - 0.25 * (row % 3 == 0)} for row in range(100)]
    assert watch(solved).verdict == "healthy"


def test_rl_is_told_from_the_streams_or_the_algorithm() -> None:
    zeros = constant(30, loss=0.0)
    assert watch(zeros).verdict == "failed"
    assert watch(zeros, algo="grpo").verdict == "healthy"
    assert watch([row | {"reward_mean": 1.0} for row in zeros]).verdict != "failed"
    # Rewards come in rows of their own; DPO and reward models log rewards too, and have a loss that falls.
    apart = [{"loss": 0.0}, {"reward_mean": float(1)}] * 15
    assert watch(apart).verdict != "failed"
    assert watch([row | {"reward_mean": 1.0, "reward_margin": 0.1} for row in zeros]).verdict == "failed"
    # Beside the marks of a policy gradient an accuracy is that of answers; a name that nobody knows says nothing.
    graded = [row | {"reward_mean": 1.0, "reward_std": 0.5, "eval_accuracy": 0.4} for row in zeros]
    assert watch(graded).verdict != "failed"
    assert watch([row | {"reward_mean": 1.0} for row in zeros], algo="mine").verdict != "failed"
    assert watch(zeros, algo="mine").verdict == "failed"


def test_supervised_training_may_become_sure() -> None:
    surer = [{"loss": 2.0 * 0.98**at, "entropy": 2.0 * 0.93**at} for at in range(120)]
    assert watch(surer).verdict == "healthy"
    # A policy may, as long as its reward does not fall.
    assert watch([row | {"reward_mean": at / 10} for at, row in enumerate(surer)]).verdict == "healthy"


def test_a_warning_is_not_repeated() -> None:
    usual, high = constant(30, grad_norm=1.0), constant(5, grad_norm=30.0)
    again = [*usual, *high] * 8
    # Each time it must be silent for twice as long: after 25 rows, 50, 100 …
    found = said(watch(again, policy(ceilings__grad_norm=10.0)))
    assert [one[0] for one in found if one[3] == "ceiling"] == [33, 68]


def test_a_planned_phase_is_no_trouble() -> None:
    harder = [*sft(0)[:200], *(row | {"loss": 4 * row["loss"]} for row in sft(1)[200:])]
    assert watch(harder).verdict == "failed"
    assert watch(harder, policy(phases=[201])).verdict == "healthy"


def test_after_stop_only_further_facts_are_said() -> None:
    rows = constant(2, loss=2.0, grad_norm=1.0) + constant(1, loss=NAN, grad_norm=NAN)
    rows += [{"loss": NAN, "grad_norm": 1.0}] * 40
    assert said(watch(rows)) == [(3, "STOP", "loss", "nonfinite")]


def test_ceilings_are_off_unless_set_and_say_when_they_mean_nothing() -> None:
    rows = constant(20, kl=0.1) + constant(20, kl=0.3)
    assert watch(rows).verdict == "healthy"
    seen = watch(rows, policy(ceilings__kl=0.2))
    assert said(seen)[0] == (23, "CRITICAL", "kl", "ceiling")
    assert not seen.notices
    above = watch(constant(50, kl=0.3), policy(ceilings__kl=0.2))
    assert above.verdict == "healthy"
    assert len(above.notices) == 1
    assert "ceiling kl 0.200: broken in 10 of the first 10 rows already" in above.notices[0]


def test_stop_is_requested_only_where_the_policy_says_so() -> None:
    rows = [{"loss": NAN}]
    assert not watch(rows).stop_requested
    assert watch(rows, policy(on_critical="stop")).stop_requested
    assert not watch(sft(0), policy(on_critical="stop")).stop_requested


def test_a_hinge_loss_that_is_learned_away_at_once_ends_no_run() -> None:
    """A healthy run may get there; what is lost after it ends the run all the same."""
    rows = [*constant(9, loss=0.5), *constant(9, loss=0.0)]
    seen = watch(rows, policy(on_critical="stop"))
    assert said(seen)[-1][1:] == ("STOP", "loss", "zero_loss")
    assert not seen.stop_requested
    assert watch([*rows, {"loss": NAN}], policy(on_critical="stop")).stop_requested


def test_a_run_that_did_not_end_as_planned_is_not_asked_whether_it_learned() -> None:
    flat = [{"loss": 2.0 + 0.1 * (row * 7 % 3)} for row in range(60)]
    assert watch(flat).verdict == "warned"
    seen = Watch(policy())
    for step, row in enumerate(flat):
        seen.observe(step, row)
    assert seen.finish(False) == ()


def test_a_known_short_run_burns_in_faster() -> None:
    rows = fail(sft(4, 60), 25, 30, grad_norm=lambda x, s: x * 8)
    drifts = [
        [one.step for one in watch(rows, max_steps=planned).warnings if one.rule == "drift"] for planned in (60, None)
    ]
    assert drifts[0][0] < drifts[1][0]


def test_memory_does_not_grow_with_the_run() -> None:
    seen = Watch(policy())
    rows = sft(0, 400)

    def size() -> int:
        total, stack, known = 0, [seen], set()
        while stack:
            one = stack.pop()
            if id(one) in known or isinstance(one, (type, str)):
                continue
            known.add(id(one))
            total += sys.getsizeof(one)
            if isinstance(one, dict):
                stack += [*one.keys(), *one.values()]
            elif isinstance(one, (list, tuple, set, frozenset)) or type(one).__name__ == "deque":
                stack += list(one)
            else:
                stack += [getattr(one, slot) for slot in getattr(one, "__slots__", ())]
                stack += list(vars(one).values()) if hasattr(one, "__dict__") else []
        return total

    sizes = []
    for turn in range(6):
        for at, row in enumerate(rows):
            seen.observe(turn * 400 + at, row)
        sizes.append(size())
    # What is left to grow are the warnings that were said.
    assert sizes[-1] - sizes[1] < 1000 * (1 + len(seen.warnings))


def test_a_fact_that_ends_a_run_counts_as_a_warning_that_stayed() -> None:
    seen = watch([*sft(0)[:40], {"loss": NAN, "grad_norm": NAN}])
    assert seen.verdict == "failed"
    assert seen.critical_held.startswith("loss is nan (nonfinite, step")


def test_a_loss_that_is_learned_away_fails_no_check() -> None:
    """Zero is a fact worth a STOP on the screen, and what a hinge loss comes to."""
    seen = watch([{"loss": max(0.0, 1.0 - 0.05 * row)} for row in range(60)])
    assert seen.critical_held == ""
