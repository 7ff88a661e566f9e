"""Which runs stand against which: pairs by seed, several baseline runs of a seed, fresh runs beside stored ones; and
what else tells of the noise of a pair."""

from __future__ import annotations

import numpy as np
import pytest
from verdicts import check

from canary_mlflow.gates import Outcome, ReasonCode, Version, judge

SEEDS = (0, 1, 2, 3, 4)


def version(*made, fresh=()):
    return Version(model="m", version="v", runs=tuple(made), fresh=tuple(fresh))


@pytest.fixture
def made(make_run):
    """Runs of one side by seed, their evaluation given; the training of a seed is the same on both sides."""

    def build(prefix, losses, **fields):
        return [
            make_run(
                f"{prefix}{seed}",
                seed,
                series_={"eval_loss": [loss], "loss": np.linspace(0.7, 0.5, 100 + seed)},
                **fields,
            )
            for seed, loss in losses.items()
        ]

    return build


def test_fresh_runs_are_runs_of_the_baseline_for_all_but_its_speed(asks_fresh, made):
    stored = made("a", dict.fromkeys(SEEDS, 0.58))
    fresh, today = (made(side, {0: 0.57, 1: 0.58, 2: 0.59}) for side in "fb")
    verdict = judge(asks_fresh, version(*stored, fresh=fresh), version(*today))
    loss, speed = (check(verdict, name).evidence for name in ("eval_loss", "step_time"))
    assert (loss.baseline_runs, speed.baseline_runs, speed.paired) == (8, 3, True)
    assert not loss.paired, "stored seeds that the candidate has not"


def test_stored_and_fresh_runs_of_a_seed_stand_as_their_mean_against_the_candidates(asks_fresh, made):
    rng = np.random.default_rng(3)
    before, beside, now = (dict(zip(SEEDS, 0.58 * np.exp(rng.normal(0, 0.01, 5)), strict=True)) for _ in range(3))
    verdict = judge(asks_fresh, version(*made("a", before), fresh=made("f", beside)), version(*made("b", now)))
    found = check(verdict, "eval_loss").evidence
    old = np.log([before[s] for s in SEEDS])
    new = np.log([beside[s] for s in SEEDS])
    apart = np.log([now[s] for s in SEEDS]) - (old + new) / 2
    assert (found.paired, found.baseline_runs, found.candidate_runs) == (True, 10, 5)
    assert not any("count as one" in note for note in verdict.notes), "each has its part in the mean"
    assert np.log1p(found.change) == pytest.approx(apart.mean())
    # Differences vary 1 + 1/2 times as much as runs; the prior counts as 4 beside their 4 degrees of freedom.
    spread = np.sqrt((np.sum((apart - apart.mean()) ** 2) / 1.5 + 4 * found.prior_sd**2) / 8)
    assert found.prior_sd == pytest.approx(0.015 * np.log1p(found.margin) / np.log1p(0.1)), "a narrower limit, by gain"
    assert found.spread == pytest.approx(spread)


def test_a_candidate_of_fewer_seeds_passes_by_identity_and_one_other_number_ends_it(asks_fresh, made):
    stored = made("a", dict(zip(SEEDS, (0.5, 0.55, 0.6, 0.65, 0.7), strict=True)))
    same = check(judge(asks_fresh, version(*stored), version(*made("b", {1: 0.55, 3: 0.65}))), "eval_loss")
    assert (same.outcome, same.evidence.identical) == (Outcome.PASS, True)
    assert "bit-identical in all 2 seeds" in same.reason
    other = check(judge(asks_fresh, version(*stored), version(*made("b", {1: 0.55, 3: 0.651}))), "eval_loss")
    assert not other.evidence.identical
    stranger = check(judge(asks_fresh, version(*stored), version(*made("b", {1: 0.55, 7: 0.65}))), "eval_loss")
    assert not stranger.evidence.identical
    drifted = made("f", {1: 0.55001, 3: 0.65001})  # the champion's own code gives other numbers today
    mixed = judge(asks_fresh, version(*stored, fresh=drifted), version(*made("b", {1: 0.55, 3: 0.65})))
    assert not check(mixed, "eval_loss").evidence.identical


def test_a_number_that_is_equal_by_chance_is_no_identity(smoke, make_run):
    def side(name):
        right = {"eval_accuracy": [0.75]}  # 48 of 64, whatever was trained
        return version(*(make_run(f"{name}{seed}", seed, series_=right) for seed in SEEDS))

    found = check(judge(smoke, side("a"), side("b")), "eval_accuracy")
    assert (found.outcome, found.evidence.identical) == (Outcome.PASS, False)
    assert found.evidence.p_noninferior is not None
    unlike = {s: {"eval_loss": [0.5], "loss": None, "policy_loss": np.linspace(1, s, 100)} for s in (2, 3)}
    sides = (version(*(make_run(f"{s}{i}", i, series_=unlike[s]) for i in SEEDS)) for s in (2, 3))
    assert not check(judge(smoke, *sides), "eval_loss").evidence.identical


def test_runs_of_one_seed_count_once_for_what_follows_the_seed(smoke, make_run):
    def side(name, seeds, loss):
        return version(
            *(make_run(f"{name}{i}", s, series_={"eval_loss": [loss + i / 1e4]}) for i, s in enumerate(seeds))
        )

    found = check(judge(smoke, side("a", [0] * 5, 0.5), side("b", [1] * 3, 0.65)), "eval_loss")
    assert (found.outcome, found.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.TOO_FEW_RUNS)
    assert "runs of one seed count as one" in found.notes
    assert "per side of other seeds would" in found.reason, "more of these would not"
    apart = check(judge(smoke, side("a", range(5), 0.5), side("b", range(5, 8), 0.65)), "eval_loss")
    assert apart.outcome == Outcome.BLOCK
    one = check(judge(smoke, side("a", [0] * 5, 0.5), side("b", range(5, 8), 0.65)), "eval_loss")
    assert one.outcome == Outcome.INCONCLUSIVE, "the mean of five runs of a seed is one number"


def test_identity_in_most_of_the_seeds_is_enough(smoke, made):
    stored = made("a", {0: 0.5, 1: 0.55})
    found = check(judge(smoke, version(*stored), version(*made("b", {0: 0.5, 1: 0.55, 2: 0.58}))), "eval_loss")
    assert (found.outcome, found.evidence.identical) == (Outcome.PASS, True)
    assert "bit-identical in both sides' 2 seeds" in found.reason
    assert found.evidence.baseline == found.evidence.candidate == pytest.approx(0.525), "the mean of what is shared"
    for level, outcome in ((0.7, "INCONCLUSIVE"), (5.5, "INCONCLUSIVE")):
        beyond = check(judge(smoke, version(*stored), version(*made("b", {0: 0.5, 1: 0.55, 2: level}))), "eval_loss")
        assert beyond.outcome == outcome, "a seed of its own that is worse than the baseline's worst by over a margin"
    other = check(judge(smoke, version(*stored), version(*made("b", {0: 0.5, 1: 0.56, 2: 0.7}))), "eval_loss")
    assert not other.evidence.identical


def test_which_of_two_runs_of_a_seed_stands_in_a_pair_is_not_left_to_their_names(smoke, make_run):
    def judged(names):
        levels = dict(zip(names, (0.02, 0.0205, 0.021, 0.0199), strict=True))
        runs = [make_run(f"b{name}", 0, series_={"step_time": np.full(100, x)}) for name, x in levels.items()]
        stored = [make_run(f"a{i}", 0, series_={"step_time": np.full(100, 0.02 + i / 1e4)}) for i in range(4)]
        return check(judge(smoke, version(*stored), version(*runs)), "step_time").evidence

    assert judged("wxyz").p_harm == pytest.approx(judged("zxwy").p_harm)
    assert not judged("wxyz").paired


def test_runs_of_a_seed_count_towards_the_least_that_may_block(smoke_with, made):
    policy, now = smoke_with(min_baseline_runs=3), version(*made("b", {0: 0.8, 1: 0.801}))
    stored, again = made("a", {0: 0.58, 1: 0.581}), made("c", {0: 0.582, 1: 0.583})
    found = check(judge(policy, version(*stored, *again), now), "eval_loss")
    assert found.outcome == Outcome.BLOCK, "two of each of two seeds are four, and three may block"
    assert "runs of one seed count as one" in found.notes
    found = check(judge(policy, version(*stored), now), "eval_loss")
    assert (found.outcome, found.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.TOO_FEW_RUNS)


@pytest.mark.parametrize(
    ("before", "now", "paired"),
    [
        ((0, 1), (0, 1), False),  # one degree of freedom
        ((0, 1, 2, 0, 1), (0, 1, 2), False),  # not equally often
        ((0, 1, None), (0, 1, None), False),  # a run without a seed is nobody's partner
        ((0, 1, 2), (2, 0, 1), True),
    ],
)
def test_which_seeds_pair_up(smoke, make_run, before, now, paired):
    def side(name, seeds):
        return version(*(make_run(f"{name}{i}", seed) for i, seed in enumerate(seeds)))

    found = judge(smoke, side("a", before), side("b", now))
    assert check(found, "eval_loss").evidence.paired is paired
    assert not check(found, "step_time").evidence.paired, "a seed sets no speed, and the machine was another's"


@pytest.mark.parametrize("each", [1, 3])
def test_two_seeds_show_a_great_harm_as_two_sides(perf, make_run, each):
    """One degree of freedom, which two pairs have, blocked 30 % more of a 5 % limit every second time only."""
    rng = np.random.default_rng(5)

    def side(name, count, loss):
        runs = [
            make_run(f"{name}{seed}{i}", seed, series_={"eval_loss": [loss * np.exp(rng.normal(0, 0.01))]})
            for seed in (0, 1)
            for i in range(count)
        ]
        return version(*runs)

    found = [check(judge(perf, side("a", each, 0.6), side("b", 1, 0.78)), "eval_loss") for _ in range(20)]
    assert [one.outcome for one in found] == [Outcome.BLOCK] * 20
