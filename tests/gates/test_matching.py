"""Which runs stand against which: pairs by seed, several baseline runs of a seed, fresh runs beside stored ones; and
what else tells of the noise of a pair."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from verdicts import check

from gates import Outcome, ReasonCode, Series, Version, judge
from gates.comparisons import compare
from gates.matching import of_shared_seeds, would_pair
from gates.readings import Reading, Yardstick
from gates.rules import Scale
from gates.spreads import Squares, pool
from gates.top_up import next_look

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


def test_fresh_runs_are_runs_of_the_baseline_for_all_but_its_speed(smoke, made):
    stored = made("a", dict.fromkeys(SEEDS, 0.58))
    fresh, today = (made(side, {0: 0.57, 1: 0.58, 2: 0.59}) for side in "fb")
    verdict = judge(smoke, version(*stored, fresh=fresh), version(*today))
    loss, speed = (check(verdict, name).evidence for name in ("eval_loss", "step_time"))
    assert (loss.baseline_runs, speed.baseline_runs, speed.paired) == (8, 3, True)
    assert not loss.paired, "stored seeds that the candidate has not"


def test_stored_and_fresh_runs_of_a_seed_stand_as_their_mean_against_the_candidates(smoke, made):
    rng = np.random.default_rng(3)
    before, beside, now = (dict(zip(SEEDS, 0.58 * np.exp(rng.normal(0, 0.01, 5)), strict=True)) for _ in range(3))
    verdict = judge(smoke, version(*made("a", before), fresh=made("f", beside)), version(*made("b", now)))
    found = check(verdict, "eval_loss").evidence
    old = np.log([before[s] for s in SEEDS])
    new = np.log([beside[s] for s in SEEDS])
    apart = np.log([now[s] for s in SEEDS]) - (old + new) / 2
    assert (found.paired, found.baseline_runs, found.candidate_runs) == (True, 10, 5)
    assert not any("count as one" in note for note in verdict.notes), "each has its part in the mean"
    assert np.log1p(found.change) == pytest.approx(apart.mean())
    # Differences vary 1 + 1/2 times as much as runs; the prior counts a quarter of their 4 degrees of freedom.
    spread = np.sqrt((np.sum((apart - apart.mean()) ** 2) / 1.5 + 0.015**2) / (4 + 1))
    assert found.spread == pytest.approx(spread)
    assert found.p_harm == pytest.approx(stats.t.sf(apart.mean() / (spread * np.sqrt(1.5 / 5)), 5))


def test_fresh_runs_that_differ_from_the_stored_ones_hide_no_change_of_the_environment(smoke, made):
    rng = np.random.default_rng(3)
    before = dict(zip(SEEDS, 0.58 * np.exp(rng.normal(0, 0.005, 5)), strict=True))
    beside, now = ({s: loss * 1.2 * np.exp(rng.normal(0, 0.005)) for s, loss in before.items()} for _ in range(2))
    baseline = version(*made("a", before), fresh=made("f", beside))
    found = check(judge(smoke, baseline, version(*made("b", now))), "eval_loss")
    assert (found.outcome, found.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.INVALID_ENVIRONMENT)
    assert "fresh runs of the baseline are as bad here today" in found.reason
    assert found.evidence.baseline_runs == 5
    assert "fresh runs of the baseline differ from its stored ones" in found.notes[0]
    worse = {seed: loss * 1.2 for seed, loss in now.items()}
    assert check(judge(smoke, baseline, version(*made("b", worse))), "eval_loss").outcome == Outcome.BLOCK


def test_where_seeds_change_nothing_pairs_rest_on_as_many_runs_as_two_sides(smoke, make_run):
    def side(prefix, levels):
        return [
            make_run(f"{prefix}{s}", s, series_={"step_time": np.full(100, x)})
            for s, x in zip(SEEDS, levels, strict=True)
        ]

    rng = np.random.default_rng(1)
    before, now = 0.02 * np.exp(rng.normal(0, 0.02, (2, 5)))
    found = check(judge(smoke, version(*side("a", before)), version(*side("b", now))), "step_time").evidence
    both = np.array([np.log(before), np.log(now)])
    squares = sum((x - x.mean()) ** 2 for x in (both[1] - both[0], both[1] + both[0])).sum() / 2
    assert squares == pytest.approx(sum(np.var(x) * 5 for x in both)), (
        "sums and differences have all that the sides have"
    )
    assert found.paired
    assert found.spread == pytest.approx(np.sqrt((squares + 1.5 * 0.02**2) / 9.5))
    data = np.array([-0.1, -0.05, 0.0, 0.05, 0.1])  # what the order of a seed's data does to both sides
    found = check(
        judge(smoke, version(*side("a", before * np.exp(data))), version(*side("b", now * np.exp(data)))), "step_time"
    ).evidence
    squares = np.var(both[1] - both[0]) * 5 / 2
    assert found.spread == pytest.approx(np.sqrt((squares + 0.02**2) / 5)), "the sums do not speak of the noise"


def test_the_sum_of_a_pair_weighs_the_mean_of_two_runs_twice(smoke, make_run):
    """So weighed it varies as three runs do, whatever the difference is."""
    rng = np.random.default_rng(4)
    before, now = np.log(0.02) + rng.normal(0, 0.02, (2, 5)), np.log(0.02) + rng.normal(0, 0.02, 5)

    def made(name, levels):
        return [make_run(f"{name}{s}", s, series_={"step_time": np.full(100, np.exp(x))}) for s, x in enumerate(levels)]

    stored = version(*made("a", before[0]), *made("c", before[1]))
    found = check(judge(smoke, stored, version(*made("b", now))), "step_time").evidence
    both = before.mean(axis=0)
    squares = 5 * np.var(now - both) / 1.5 + 5 * np.var(2 * both + now) / 3
    assert (found.paired, found.spread) == (True, pytest.approx(np.sqrt((squares + 1.5 * 0.02**2) / 9.5)))


def test_what_a_loss_wobbles_by_inside_its_runs_is_no_noise_of_pairs(smoke, make_run):
    """Runs of one seed see the same data in the same order. What steps take is not in the data."""
    rng = np.random.default_rng(2)
    wobble, apart = np.exp(rng.normal(0, 0.2, (5, 100))), rng.normal(0, 0.01, 5)

    def side(name, levels):
        values = wobble * np.exp(levels)[:, None]
        made = [{"loss": values[seed], "step_time": 0.02 * values[seed], "eval_loss": None} for seed in SEEDS]
        return version(*(make_run(f"{name}{seed}", seed, series_=made[seed]) for seed in SEEDS))

    verdict = judge(smoke, side("a", np.zeros(5)), side("b", apart))
    loss, times = (check(verdict, name) for name in ("loss", "step_time"))
    assert (loss.role, loss.evidence.paired, loss.notes) == ("gate", True, ())
    assert loss.evidence.spread == pytest.approx(np.sqrt((5 * np.var(apart) / 2 + 0.015**2) / 5))
    assert times.evidence.paired
    assert times.evidence.spread == pytest.approx(0.2 / np.sqrt(90), rel=0.3)


def test_a_candidate_of_fewer_seeds_passes_by_identity_and_one_other_number_ends_it(smoke, made):
    stored = made("a", dict(zip(SEEDS, (0.5, 0.55, 0.6, 0.65, 0.7), strict=True)))
    same = check(judge(smoke, version(*stored), version(*made("b", {1: 0.55, 3: 0.65}))), "eval_loss")
    assert (same.outcome, same.evidence.identical) == (Outcome.PASS, True)
    assert "bit-identical in all 2 seeds" in same.reason
    other = check(judge(smoke, version(*stored), version(*made("b", {1: 0.55, 3: 0.651}))), "eval_loss")
    assert not other.evidence.identical
    stranger = check(judge(smoke, version(*stored), version(*made("b", {1: 0.55, 7: 0.65}))), "eval_loss")
    assert not stranger.evidence.identical
    drifted = made("f", {1: 0.55001, 3: 0.65001})  # the champion's own code gives other numbers today
    mixed = judge(smoke, version(*stored, fresh=drifted), version(*made("b", {1: 0.55, 3: 0.65})))
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
    found = check(judge(smoke, version(*stored), version(*made("b", {0: 0.5, 1: 0.55, 2: 0.6}))), "eval_loss")
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
        ((0, 1), (0, 1), True),
        ((0, 1, 0, 1), (0, 1), False),  # two pairs of unlike sides
        ((0, 1, None), (0, 1, None), False),  # a run without a seed is nobody's partner
        ((0, 1, 2), (2, 0, 1), True),
    ],
)
def test_which_seeds_pair_times_up(smoke, make_run, before, now, paired):
    def side(name, seeds):
        return version(*(make_run(f"{name}{i}", seed) for i, seed in enumerate(seeds)))

    found = check(judge(smoke, side("a", before), side("b", now)), "step_time")
    assert found.evidence.paired is paired


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


@pytest.fixture
def peaked(make_run):
    """A side whose peak memory follows from the seed: that of its longest batch."""

    def side(name, seeds, factor=1.0, wobble=5.0):
        rng = np.random.default_rng([*name.encode()])
        peaks = [factor * (31_000 + 2_000 * (seed * 0.37 % 1) + rng.normal(0, wobble)) for seed in seeds]
        return version(
            *(
                make_run(f"{name}{i}", seed, series_={"peak_memory": np.full(100, peak)})
                for i, (seed, peak) in enumerate(zip(seeds, peaks, strict=True))
            )
        )

    return side


@pytest.mark.parametrize(("harm", "outcome"), [(1.0, "PASS"), (1.05, "BLOCK")])
def test_memory_that_follows_the_seed_is_judged_by_the_seeds_of_both_sides(perf, peaked, harm, outcome):
    """The baseline has two seeds besides."""
    found = check(judge(perf, peaked("a", range(5)), peaked("b", range(3), harm)), "peak_memory")
    assert found.outcome == outcome
    assert found.evidence.paired
    assert found.evidence.baseline_runs == 3
    assert "judged by the seeds of both sides" in found.notes[-1]
    # A seed that the baseline lacks is evidence too, and so nothing is left out.
    apart = check(judge(perf, peaked("a", range(5)), peaked("b", [0, 1, 7], harm)), "peak_memory")
    assert (apart.evidence.baseline_runs, apart.evidence.paired) == (5, False)


@pytest.mark.parametrize("count", [1, 2])
def test_a_plan_waits_for_pairs_where_runs_of_one_seed_agree(perf, peaked, count):
    """Unpaired, no number of runs decides: the plan would end with its first look."""
    first = judge(perf, peaked("a", range(5)), peaked("b", range(count), wobble=1.0), look=1)
    assert check(first, "peak_memory").more_runs == 3
    assert "those of one seed agree, 3 of the baseline's seeds would make pairs" in first.reason
    assert next_look(perf, first).look == 2
    other = judge(perf, peaked("a", range(5)), peaked("b", range(7, 7 + count), wobble=1.0), look=1)
    assert next_look(perf, other).look is None, "of other seeds there are no pairs to wait for"


@pytest.mark.parametrize(
    ("seeds", "waits"),
    [((0, 1, 2), True), ((0, 1), False), ((0, 0, 1, 1), False), ((0, 1, 2, 2), False)],
)
def test_a_plan_waits_for_no_pairs_that_the_baselines_seeds_cannot_make(perf, peaked, seeds, waits):
    first = judge(perf, peaked("a", seeds), peaked("b", [0], wobble=1.0), look=1)
    assert ("3 of the baseline's seeds would make pairs" in first.reason) is waits


def test_runs_without_a_seed_make_no_pairs_to_wait_for(perf, make_run):
    def side(name, seeds, peaks):
        return version(*(make_run(f"{name}{i}", s, series_={"peak_memory": [peaks[i]]}) for i, s in enumerate(seeds)))

    before, now = side("a", (0, 1, None, None), (31_000, 32_000, 31_500, 32_500)), side("b", (0,), (31_002,))
    assert "would make pairs" not in judge(perf, before, now, look=1).reason


def test_runs_that_are_in_pairs_already_wait_for_none(perf, make_run):
    def side(name, peaks):
        return version(*(make_run(f"{name}{s}", s, series_={"peak_memory": [x]}) for s, x in enumerate(peaks)))

    before, now = side("a", [15_000, 20_000, 30_000, 45_000]), side("b", [15_300, 20_000, 29_500])
    found = check(judge(perf, before, now, look=2), "peak_memory")
    assert found.evidence.paired
    assert found.more_runs > 3
    assert "would make pairs" not in found.reason


STICK = Yardstick(scale=Scale.IDENTITY, sign=1.0, margin=0.1, prior=0.02, planned=0.02)


def readings(name, values):
    """One of each (seed, value)."""
    none = Series.from_pairs("peak_memory", [(1, 0.0)])
    rest = {"series": none, "se": 0.0, "batches": np.empty(0), "dropped": 0, "last_step": 1, "warmup": 0}
    return [Reading(run_id=f"{name}{i}", seed=seed, value=float(x), **rest) for i, (seed, x) in enumerate(values)]


@pytest.mark.parametrize("size", [3, 4])
def test_seeds_that_have_no_part_in_a_number_are_seldom_said_to(size):
    rng = np.random.default_rng(3)

    def drawn(name, count):
        return readings(name, enumerate(rng.normal(size=count)))

    kept = [len(of_shared_seeds(STICK, drawn("a", 5), drawn("b", size))) for _ in range(4000)]
    assert 0 < sum(count < 5 for count in kept) / 4000 <= 0.01


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("apart", [(1, -1), (3, 1), (2, -1, -1)])
def test_runs_of_one_seed_agree_where_an_f_test_at_one_percent_says_so(each, apart):
    """`apart`: two differences, which are those of a plan's first looks and lie about nothing, or three about their
    mean. The baseline has `each` runs of a seed."""
    levels, size, apart = np.arange(5.0), len(apart), np.array(apart)
    df = 2 if size == 2 else size - 1
    before = readings("a", [(seed, level) for seed, level in enumerate(levels) for _ in range(each)])

    def agree(over):
        """With differences so many times the limit's."""
        sides = np.repeat(levels, each), levels[:size]
        runs = sum(len(x) * np.var(x) for x in sides) / (len(sides[0]) + size - 2)
        limit = stats.f.ppf(0.01, df, len(sides[0]) + size - 2) * runs * df * (1 + 1 / each)
        now = readings("b", enumerate(levels[:size] + apart * over * np.sqrt(limit / np.sum(apart**2))))
        return would_pair(STICK, before, now) if size == 2 else len(of_shared_seeds(STICK, before, now)) == 3 * each

    assert agree(0.9)
    assert not agree(1.1)


def test_a_mean_of_runs_and_a_single_one_show_nothing_by_their_order():
    rng = np.random.default_rng(1)
    before, now = rng.normal(0, 0.2, 8), rng.normal(3, 0.2, 8)
    for averaged, shown in ((1, True), (2, False)):
        found = compare(before, now, margin=0.05, prior=0.02, prior_df=4, paired=True, averaged=averaged, trusted=False)
        assert (found.separated, found.shows_harm(0.01)) == (True, shown)


def test_sums_count_for_the_spread_only_where_they_tell_of_the_same():
    own = Squares(total=4.0, df=4)
    assert pool(own, Squares(total=8.0, df=4)) == Squares(total=12.0, df=8)
    limit = stats.f.ppf(0.95, 4, 4)
    assert pool(own, Squares(total=4 * limit * 1.01, df=4)) == own, (
        "noisier, as the sums of pairs from unlike hosts are"
    )
    assert pool(own, Squares(total=4 / limit / 1.01, df=4)) == own, "calmer"
    assert pool(own, Squares(total=4 * limit * 0.99, df=4)).df == 8
    assert pool(own, Squares(total=0.0, df=4)) == own, "numbers that never differ tell of no noise"


@pytest.mark.full
@pytest.mark.parametrize("noise", [(0.02, 0.02), (0.03, 0.03), (0.04, 0.04), (0.02, 0.04), (0.02, 0.01)])
@pytest.mark.parametrize("unlike", [0.0, 0.1], ids=["one host", "bad hosts"])
def test_sums_of_pairs_let_hardly_more_pass_at_the_margin_and_more_without_harm(noise, unlike):
    """`noise`: of the baseline's runs and the candidate's; `unlike`: how much slower one pair in twenty is."""
    rng, repeats = np.random.default_rng(5), 3000
    passed = {(sums, harm): 0 for sums in (False, True) for harm in (0.0, 0.05)}
    for _ in range(repeats):
        host = unlike * (rng.random(5) < 0.05)
        fresh, candidate = (rng.normal(host, sd) for sd in noise)
        for sums, harm in passed:
            found = compare(fresh, candidate + harm, margin=0.05, prior=0.02, prior_df=4, paired=True, sums=sums)
            passed[sums, harm] += found.p_noninferior <= 0.05
    assert passed[True, 0.05] / repeats <= 0.06 + 0.004  # the F test costs up to a point; one standard error
    assert passed[False, 0.05] / repeats <= 0.05 + 0.008  # two standard errors
    assert passed[True, 0.0] >= passed[False, 0.0] - 6
    if noise == (0.03, 0.03):
        assert passed[True, 0.0] >= 1.05 * passed[False, 0.0]
