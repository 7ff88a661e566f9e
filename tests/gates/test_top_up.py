"""Looking several times spends no more than looking once, and a plan that cannot decide ends early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from canary_mlflow.gates import Outcome, ReasonCode, Run, Series, Version, judge
from canary_mlflow.gates.model.policy import FreshBaseline, Looks, WithoutSource
from canary_mlflow.gates.model.rules import Prior
from canary_mlflow.gates.stats.comparisons import compare
from canary_mlflow.gates.top_up import TopUp, certain, next_look, next_seeds, to_run_again
from canary_mlflow.policies import load_policy

SHARES, RUNS = (0.2, 0.3, 0.5), (1, 3, 5)


PRIOR = Prior(sd=0.02, df=4, kind="shipped")


def false_alarms(alphas, repeats=600, spread=0.02):
    """How often unchanged runs are called worse at any look, and PASSed at the margin at any look."""
    rng = np.random.default_rng(5)
    worse = passed = 0
    for _ in range(repeats):
        baseline, candidate = rng.normal(0, spread, 5), rng.normal(0, spread, 5)
        looks = [compare(baseline, candidate[:m], margin=0.0, prior=PRIOR) for m in RUNS]
        worse += any(look.p_harm <= alpha for look, alpha in zip(looks, alphas, strict=True))
        late = [compare(baseline, candidate[:m] + 0.05, margin=0.05, prior=PRIOR) for m in RUNS]
        passed += any(look.p_noninferior <= alpha for look, alpha in zip(late, alphas, strict=True))
    return worse / repeats, passed / repeats


def test_what_is_spent_over_the_looks_stays_within_alpha():
    alpha = 0.05
    worse, passed = false_alarms([alpha * share for share in SHARES])
    assert 0.01 < worse <= alpha
    assert 0.02 < passed <= alpha
    assert false_alarms([alpha] * 3)[1] > alpha, "peeking without spending"


def tried(harm, tries=10, repeats=200, spread=0.02):
    """p_noninferior of a candidate that is worse by `harm` margins, (repeats, tries): each try has three runs of its
    own beside the same three of the champion."""
    rng = np.random.default_rng(9)
    found = np.empty((repeats, tries))
    for row in found:
        champion = rng.normal(0, spread, 3)
        for number in range(tries):
            candidate = rng.normal(0.05 * harm, spread, 3)
            row[number] = compare(champion, candidate, margin=0.05, prior=PRIOR).p_noninferior
    return found


@pytest.mark.parametrize("harm", [1.0, 1.5])
def test_ten_tries_pass_harm_at_most_one_level_more_often_than_one(harm):
    found = tried(harm)
    shares = np.array([Looks.share_of_try(number) for number in range(1, 11)])
    one, ten, free = (found[:, 0] <= 0.05).mean(), (found <= 0.05 * shares).any(1).mean(), (found <= 0.05).any(1).mean()
    print(f"{harm} margins worse, passes: one try {one:.1%}, ten {ten:.1%}, ten at the whole level {free:.1%}")
    assert one <= ten <= one + 0.05 < free or harm > 1
    assert one <= ten < free


def test_however_many_tries_follow_they_spend_one_more_level():
    shares = [Looks.share_of_try(number) for number in range(1, 1001)]
    assert shares[:4] == pytest.approx([1, 1 / 2, 1 / 6, 1 / 12])
    assert 1.99 < sum(shares) <= 2


def run(name, level, steps=80):
    values = np.full(steps, 0.1 * np.exp(level))
    values[::2] *= 1.01
    held = {"step_time": Series(name="step_time", steps=np.arange(1, steps + 1), values=values)}
    return Run(run_id=name, seed=None, series=held, learned=True, last_step=steps)


def followed(policy, rng, spread, harm):
    """A whole plan, as a session with top-up would go: the last verdict and the candidate runs spent."""
    levels = {side: rng.normal(0, spread, 5) for side in "ab"}
    baseline = Version(model="m", version="1", runs=tuple(run(f"a{i}", x) for i, x in enumerate(levels["a"])))
    step = TopUp(look=1, candidate_runs=policy.looks.runs[0], reason="the first")
    while True:
        some = levels["b"][: step.candidate_runs] + harm
        candidate = Version(model="m", version="2", runs=tuple(run(f"b{i}", x) for i, x in enumerate(some)))
        verdict = judge(policy, baseline, candidate, look=step.look)
        step = next_look(policy, verdict)
        if step.look is None:
            return verdict.outcome, len(some)


@pytest.mark.parametrize(
    ("tier", "spread", "harm", "outcome", "least"),
    [
        ("smoke", 0.02, 0.0, Outcome.PASS, 0.97),
        pytest.param("smoke", 0.03, np.log(1.225), Outcome.BLOCK, 0.9, marks=pytest.mark.full),
        ("perf", 0.02, 0.0, Outcome.PASS, 0.95),
        pytest.param("perf", 0.02, np.log(1.12), Outcome.BLOCK, 0.95, marks=pytest.mark.full),
    ],
)
def test_a_plan_decides_as_often_as_it_should(tier, spread, harm, outcome, least):

    policy, rng = load_policy(tier), np.random.default_rng(7)
    found = [followed(policy, rng, spread, harm) for _ in range(60)]
    wrong = Outcome.BLOCK if outcome is Outcome.PASS else Outcome.PASS
    assert sum(each == outcome for each, _ in found) / 60 >= least
    assert sum(each == wrong for each, _ in found) / 60 <= 0.01
    assert min(spent for _, spent in found) < policy.looks.runs[-1] or outcome is Outcome.BLOCK, "it stops early"


def verdict_of(policy, levels, look):
    sides = [
        Version(model="m", version=name, runs=tuple(run(f"{name}{i}", x) for i, x in enumerate(some)))
        for name, some in (("a", levels[0]), ("b", levels[1]))
    ]
    return judge(policy, *sides, look=look)


def test_a_plan_that_cannot_decide_ends_early_and_says_why(smoke):
    hopeless = verdict_of(smoke, ([0.0, 0.4, -0.4, 0.3, -0.3], [0.1]), 1)
    step = next_look(smoke, hopeless)
    assert (hopeless.outcome, step.look) == (Outcome.INCONCLUSIVE, None)
    assert "step_time: no number of runs would decide" in step.reason
    open_ = verdict_of(smoke, ([0.0, 0.01, -0.01], [0.3]), 1)
    assert open_.reason_code is ReasonCode.TOO_FEW_RUNS
    assert (next_look(smoke, open_).look, next_look(smoke, open_).candidate_runs) == (2, 3)


@pytest.mark.parametrize(
    ("metric", "needed", "paired", "fresh", "goes_on"),
    [
        ("step_time", 10, False, False, True),  # half of them decide every other time
        ("step_time", 11, False, False, False),
        ("step_time", 11, False, True, True),  # beside a fresh baseline another session's clock no longer counts
        ("step_time", 11, True, True, False),  # nor did it at this look
        ("step_time_drift", 11, False, True, False),
    ],
)
def test_a_plan_is_given_up_only_where_its_runs_would_hardly_decide(metric, needed, paired, fresh, goes_on):

    policy = load_policy("perf")
    open_ = verdict_of(policy, ([0.0, 0.03, -0.03], [0.05]), 1)
    (check,) = (check for check in open_.checks if check.metric == "step_time")
    evidence = replace(check.evidence, paired=paired)
    stuck = replace(check, metric=metric, more_runs=needed, runs_if_unchanged=needed, evidence=evidence)
    step = next_look(policy, replace(open_, checks=(stuck,)), fresh=fresh)
    assert (step.look is not None) is goes_on
    assert goes_on or f"{metric}: {needed} runs per side would decide, the plan has 5" in step.reason


@pytest.mark.parametrize("needed", [(4, 20), (20, 4), (4, None), (None, 4)])
def test_a_plan_goes_on_where_either_guess_at_the_truth_leaves_it_runs_enough(smoke, needed):
    """As the estimate of one run stands, or if nothing had changed."""
    open_ = verdict_of(smoke, ([0.0, 0.03, -0.03], [0.1]), 1)
    checks = (replace(check, more_runs=needed[0], runs_if_unchanged=needed[1]) for check in open_.checks)
    assert next_look(smoke, replace(open_, checks=tuple(checks))).look == 2


def test_a_plan_goes_on_where_a_run_broke_off(smoke):
    broken = replace(run("b1", 0.01), completed=False, failure="error", seed=1)
    verdict = judge(smoke, side(*baseline_runs()), side(timed("b0", 0, 0.0, 1.0), broken), look=1)
    assert verdict.reason_code is ReasonCode.BROKEN_OFF
    assert next_look(smoke, verdict).look == 2


def test_a_plan_ends_with_a_decision_with_its_last_look_and_where_runs_are_no_answer(smoke):
    assert next_look(smoke, verdict_of(smoke, ([0.0, 0.01], [0.0]), 1)).reason == "decided: PASS"
    assert "plan ends" in next_look(smoke, verdict_of(smoke, ([0.0, 0.2], [0.1, 0.0, 0.2]), 2)).reason
    alone = judge(smoke, None, Version(model="m", version="b", runs=(run("b0", 0.0),)), look=1)
    assert "no answer to no-baseline" in next_look(smoke, alone).reason


def test_a_look_spends_its_share_only(smoke):
    full, first = (verdict_of(smoke, ([0.0, 0.01], [0.0]), look) for look in (None, 1))
    assert (full.look, first.look) == (None, 1)
    assert first.policy["alpha_pass"] == pytest.approx(0.3 * full.policy["alpha_pass"])
    assert first.policy["alpha_block"] == pytest.approx(0.3 * full.policy["alpha_block"])


PLAN = Looks(
    runs=RUNS, shares=SHARES, fresh_baseline=FreshBaseline.NEVER, without_source=WithoutSource.UNPAIRED
)  # fmt: skip


@pytest.mark.parametrize(
    ("runs", "taken", "look", "share"),
    [
        (1, (), 1, 0.2),
        (3, (), 2, 0.5),  # the first look was never taken, so its share is still there
        (5, (), 3, 1.0),
        (9, (), 3, 1.0),
        (3, (1,), 2, 0.3),
        (5, (1,), 3, 0.8),
        (5, (1, 3), 3, 0.5),
        (3, (1, 3), 3, 0.5),  # other runs, though no more of them
        (1, (1,), 2, 0.3),
        (2, (3,), 3, 0.5),  # a run of it was taken away
        (4, (3,), 3, 0.5),  # between two looks: the later one
        (4, (), 2, 0.5),
        (9, (1, 3, 5), 3, 0.0),
    ],
)
def test_a_plan_taken_up_again_spends_what_is_left_of_it(runs, taken, look, share):
    assert PLAN.reached(runs, taken) == look
    assert PLAN.share(look, taken) == pytest.approx(share)


def test_looks_beyond_a_plan_spend_no_more_than_it_all_together():
    beyond = [PLAN.share_beyond((1, 3, *range(5, last))) for last in range(6, 40)]
    assert beyond[:3] == [0.5, 0.25, 0.125]
    assert sum(beyond) <= 1.0
    assert PLAN.share_beyond((5,)) == 0.5  # the one look that spent the whole plan


@pytest.mark.parametrize(
    ("count", "baseline", "candidate", "seeds"),
    [
        (2, (0, 1, 2), (0,), [1, 2]),
        (2, (0, 1, 2), (0, 1, 2), [3, 4]),
        (2, (7, 8), (0,), [7, 8]),
        (3, (7,), (5,), [7, 6, 8]),
        (1, (), (), [0]),
    ],
)
def test_added_runs_take_the_seeds_that_make_pairs_first(count, baseline, candidate, seeds):
    assert next_seeds(count, baseline, candidate) == seeds


def timed(name, seed, level, sentinel, steps=80):
    made = run(name, level, steps)
    kernel = Series(name="sentinel_time", steps=np.arange(1, steps + 1), values=np.full(steps, sentinel))
    return replace(made, seed=seed, series={**made.series, "sentinel_time": kernel})


def side(*made, fresh=()):
    return Version(model="m", version="v", runs=tuple(made), fresh=tuple(fresh))


def baseline_runs(count=3, prefix="a", level=0.0, sentinel=1.0, steps=80):
    return [
        timed(f"{prefix}{seed}", seed, level + 0.004 * np.sin(seed + 10 * ord(prefix)), sentinel, steps)
        for seed in range(count)
    ]


def test_a_contended_run_is_made_again_at_most_twice_and_then_not_judged(smoke):
    stored, good = baseline_runs(), baseline_runs(2, "b")
    busy = [timed(f"b2{'x' * tries}", 2, 0.3 + tries / 1000, 1.4) for tries in range(3)]
    for tries in (1, 2):
        again = to_run_again(smoke, stored, side(*good, *busy[:tries]))
        assert list(again) == [2]
        assert "fixed kernel" in again[2]
    assert to_run_again(smoke, stored, side(*good, *busy)) == {}
    never = replace(smoke, validity=replace(smoke.validity, reruns=0))
    assert to_run_again(never, stored, side(*good, *busy[:1])) == {}
    verdict = judge(smoke, side(*stored), side(*good, *busy[:1], timed("b3", 2, 0.0, 1.0)))
    assert verdict.outcome is Outcome.PASS
    assert any("contended (candidate run b2: it ran a fixed kernel" in note for note in verdict.notes)


def test_made_again_or_not_a_nan_blocks(smoke):
    broken = replace(timed("b2", 2, 0.0, 1.4), nan_steps=1)
    verdict = judge(smoke, side(*baseline_runs()), side(*baseline_runs(2, "b"), broken, timed("b3", 2, 0.0, 1.0)))
    assert (verdict.outcome, verdict.reason_code) == (Outcome.BLOCK, ReasonCode.HARD_GATE)


def test_nothing_is_made_again_where_no_clock_decides(smoke):
    rules = tuple(replace(rule, role="advisory") if rule.name == "step_time" else rule for rule in smoke.rules)
    quiet = replace(smoke, rules=tuple(rule for rule in rules if rule.metric not in ("tokens_per_second",)))
    assert to_run_again(quiet, baseline_runs(), side(timed("b0", 0, 0.3, 1.4))) == {}


def test_fresh_runs_beside_the_candidates_take_a_slower_day_out(asks_fresh):
    stored = baseline_runs(5)
    slower = 0.25  # of the whole machine
    today = baseline_runs(4, "b", slower, 1.28)
    beside = [timed(f"f{seed}", seed, slower + 0.003 * np.cos(seed), 1.28) for seed in range(1, 4)]
    alone = judge(asks_fresh, side(*stored), side(*today))
    assert alone.reason_code is ReasonCode.INVALID_ENVIRONMENT
    paired = judge(asks_fresh, side(*stored, fresh=beside), side(*today))
    assert (paired.outcome, paired.reason) == (Outcome.PASS, paired.reason)
    step_time = next(check for check in paired.checks if check.metric == "step_time")
    assert (step_time.evidence.paired, step_time.evidence.baseline_runs) == (True, 3)
    assert set(paired.baseline_runs) == {run.run_id for run in (*stored, *beside)}
    assert any("judged in pairs" in note and "1, 2, 3" in note for note in paired.notes)
    slow_code = [timed(r.run_id, r.seed, slower + 0.3 + 0.004 * np.sin(r.seed), 1.28) for r in today]
    assert judge(asks_fresh, side(*stored, fresh=beside), side(*slow_code)).outcome is Outcome.BLOCK


def test_one_fresh_run_is_no_pair_to_judge_by_and_other_work_no_pair_at_all(asks_fresh):
    stored, today = baseline_runs(3), baseline_runs(3, "b")
    one = judge(asks_fresh, side(*stored, fresh=[timed("f1", 1, 0.3, 1.0)]), side(*today))
    assert next(check.evidence for check in one.checks if check.metric == "step_time").baseline_runs == 3
    other = [replace(timed(f"f{seed}", seed, seed / 100, 1.0), workload={"max_steps": "9"}) for seed in (1, 2)]
    assert judge(asks_fresh, side(*stored, fresh=other), side(*today)).reason_code is ReasonCode.NOT_COMPARABLE


@pytest.mark.parametrize("seeds", [(1,), (7, 8, 9)], ids=["one", "of other seeds"])
def test_fresh_runs_that_make_no_pairs_excuse_no_slower_machine(asks_fresh, seeds):
    today = [timed(f"b{seed}", seed, 0.25 + seed / 1000, 1.28) for seed in range(3)]
    fresh = [timed(f"f{seed}", seed, 0.2505 + seed / 1000, 1.28) for seed in seeds]
    verdict = judge(asks_fresh, side(*baseline_runs(5), fresh=fresh), side(*today))
    assert (verdict.outcome, verdict.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.INVALID_ENVIRONMENT)
    assert any("fewer than two valid pairs" in note for note in verdict.notes)


def test_candidate_runs_without_a_fresh_one_beside_are_named(asks_fresh):
    fresh = [timed(f"f{seed}", seed, 0.001 + seed / 100, 1.0) for seed in (0, 1)]
    today = [*baseline_runs(2, "b"), timed("b2", 2, 0.01, 1.0), timed("b3", 3, 0.015, 1.0), timed("c3", 3, 0.02, 1.0)]
    notes = judge(asks_fresh, side(*baseline_runs(3), fresh=fresh), side(*today)).notes
    assert any("for want of a fresh run beside: run b2, run b3, run c3" in note for note in notes), notes


def test_a_contended_stored_run_stays_out_beside_fresh_ones(asks_fresh):
    stored = [*baseline_runs(5), timed("a0x", 0, 0.3, 1.5)]
    fresh, today = (baseline_runs(3, prefix) for prefix in "fb")
    verdict = judge(asks_fresh, side(*stored, fresh=fresh), side(*today))
    assert any("contended (baseline run a0x: it" in note for note in verdict.notes)


@pytest.mark.parametrize(("tier", "steps"), [("smoke", 80), ("perf", 400)])
def test_a_machine_that_is_another_today_is_answered_by_fresh_runs_only(tier, steps):
    """Of 400 steps tails and drifts decide too, by the same clock."""

    policy = load_policy(tier)
    verdict = judge(policy, side(*baseline_runs(steps=steps)), side(timed("b0", 0, 0.25, 1.3, steps)), look=1)
    assert verdict.reason_code is ReasonCode.INVALID_ENVIRONMENT
    assert next_look(policy, verdict).look is None
    assert next_look(policy, verdict, fresh=True).look == 2


def test_nothing_is_made_again_of_a_seed_that_crashed(smoke):
    """A rerun that runs out of memory blocks: another would change nothing, and they would never end."""
    stored, busy = baseline_runs(), timed("b2", 2, 0.3, 1.4)
    crashed = replace(timed("b2x", 2, 0.3, 1.0), completed=False, failure="oom")
    assert list(to_run_again(smoke, stored, side(*baseline_runs(2, "b"), busy))) == [2]
    assert to_run_again(smoke, stored, side(*baseline_runs(2, "b"), busy, crashed)) == {}
    stopped = [replace(crashed, run_id=f"b2{tries}", failure="interrupted") for tries in range(2)]
    again = to_run_again(smoke, stored, side(*baseline_runs(2, "b"), busy, *stopped))
    assert list(again) == [2], "what was stopped was no try"


def test_a_plan_goes_on_where_all_its_runs_broke_off(smoke):
    broken = replace(timed("b0", 0, 0.0, 1.0), completed=False, failure="error")
    verdict = judge(smoke, side(*baseline_runs()), side(broken), look=1)
    assert verdict.reason_code is ReasonCode.BROKEN_OFF
    assert next_look(smoke, verdict).look == 2


def test_a_run_that_broke_off_is_made_again_as_often_as_the_policy_says(smoke):
    stored, good = baseline_runs(), baseline_runs(2, "b")
    lost = [replace(timed(f"b2{n}", 2, n / 100, 1.0), completed=False, failure="error") for n in range(3)]
    assert to_run_again(smoke, stored, side(*good, *lost[:2])) == {2: "broke off (no end was recorded)"}
    assert to_run_again(smoke, stored, side(*good, *lost)) == {}
    assert to_run_again(smoke, stored, side(*good, lost[0], timed("b3", 2, 0.015, 1.0))) == {}
    crashed = replace(timed("b4", 3, 0.02, 1.0), completed=False, failure="oom")
    assert to_run_again(smoke, stored, side(*good, lost[0], crashed)) == {}, "it blocks whatever comes"
    unasked = replace(smoke, hard=replace(smoke.hard, completed=False))
    assert to_run_again(unasked, stored, side(*good, lost[0])) == {}


def test_one_good_rerun_is_enough(smoke):
    made = (timed("b2", 2, 0.3, 1.4), timed("b2x", 2, 0.0, 1.0))
    assert to_run_again(smoke, baseline_runs(), side(*baseline_runs(2, "b"), *made)) == {}


def test_a_policy_that_never_asks_for_fresh_runs_takes_none(smoke):
    """A machine as slow today as its fresh runs say: they would excuse the candidate."""
    slower = [timed(f"f{seed}", seed, 0.5 + seed / 100, 1.0) for seed in range(3)]
    today = [timed(f"b{seed}", seed, 0.5 + seed / 90, 1.0) for seed in range(3)]
    verdict = judge(smoke, side(*baseline_runs(3), fresh=slower), side(*today))
    assert verdict.outcome is Outcome.BLOCK
    assert not {run.run_id for run in slower} & set(verdict.baseline_runs)


def unstable(count, failing, name):
    """Runs of which so many became unstable."""
    steps = np.arange(1, 61)
    return Version(
        model="m", version=None,
        runs=tuple(
            Run(
                run_id=f"{name} {seed}", seed=seed, last_step=60,
                series={"eval_loss": Series(name="eval_loss", steps=steps, values=1 + 0.01 * seed + 0 * steps)},
                completed=seed >= failing, failure="instability" if seed < failing else "",
            )
            for seed in range(count)
        ),
    )  # fmt: skip


@pytest.mark.parametrize(("theirs", "missing", "found"), [(0, 9, "not completed"), (1, 0, "not completed"), (1, 9, "")])
def test_a_check_is_certain_only_if_good_runs_would_not_turn_it(theirs, missing, found):
    fast, slow = (load_policy({"base": "smoke", "name": "own", "fail_fast": fail}) for fail in (True, False))
    sides = unstable(10, theirs, "champion"), unstable(1, 1, "candidate")
    assert certain(fast, *sides, missing) == found
    assert certain(slow, *sides, missing) == ""


def costing(step_cost, count, name):
    steps = np.arange(1, 61)
    return Version(
        model="m", version=None,
        runs=tuple(
            Run(
                run_id=f"{name} {seed}", seed=seed, last_step=60, hardware={"backend": "cpu"}, learned=True,
                series={
                    "step_cost": Series(name="step_cost", steps=steps, values=step_cost + 0.001 * seed + 0.0 * steps),
                    "eval_loss": Series(name="eval_loss", steps=steps[-1:], values=np.array([1 + 0.001 * seed])),
                },
            )
            for seed in range(count)
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("slower", "made", "missing", "found"),
    [(1.5, 2, 3, "step_cost"), (1.5, 1, 4, ""), (1.1, 2, 3, ""), (1.0, 4, 1, ""), (1.5, 2, 0, "step_cost")],
)
def test_a_metric_that_blocks_is_certain_from_the_second_run_on(slower, made, missing, found):
    fast = load_policy({"base": "smoke", "name": "own", "fail_fast": True})
    sides = costing(0.1, 5, "champion"), costing(0.1 * slower, made, "candidate")
    assert certain(fast, *sides, missing) == found
    assert certain(fast, *sides, missing, by_plan=True) == ""


def test_early_looks_and_the_last_one_spend_one_level():
    policy = load_policy("perf")
    early = [policy.early_share(runs, 5) for runs in range(2, 100)]
    assert early[:3] == pytest.approx([0.1, 0.05, 0.025])
    assert 1 - 1e-9 < sum(early) + policy.early_share(5, 0) <= 1
    assert {load_policy("smoke").early_share(runs, missing) for runs in (1, 3) for missing in (0, 2)} == {1.0}
    planned = load_policy({"base": "smoke", "name": "own", "fail_fast": True, "top_up": True})
    assert planned.early_share(5, 0) == 1.0
    sides = costing(0.1, 5, "champion"), costing(0.1, 3, "candidate")
    assert [judge(policy, *sides, missing=missing).policy["alpha_block"] for missing in (0, 2)] == [0.008, 0.0005]
    assert judge(policy, *sides, look=3).policy["alpha_block"] == pytest.approx(0.007)
