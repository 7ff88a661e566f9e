"""Looking several times spends no more than looking once, and a plan that cannot decide ends early."""

from __future__ import annotations

import numpy as np
import pytest

from gates import Outcome, ReasonCode, Run, Series, Version, judge
from gates.comparisons import compare
from gates.top_up import first_look, next_look

SHARES, RUNS = (0.2, 0.3, 0.5), (1, 3, 5)


def false_alarms(alphas, repeats=2000, spread=0.02):
    """How often unchanged runs are called worse at any look, and PASSed at the margin at any look."""
    rng = np.random.default_rng(5)
    worse = passed = 0
    for _ in range(repeats):
        baseline, candidate = rng.normal(0, spread, 5), rng.normal(0, spread, 5)
        looks = [compare(baseline, candidate[:m], margin=0.05, prior=0.02, prior_df=4) for m in RUNS]
        worse += any(look.p_harm <= alpha for look, alpha in zip(looks, alphas, strict=True))
        late = [compare(baseline, candidate[:m] + 0.05, margin=0.05, prior=0.02, prior_df=4) for m in RUNS]
        passed += any(look.p_noninferior <= alpha for look, alpha in zip(late, alphas, strict=True))
    return worse / repeats, passed / repeats


def test_what_is_spent_over_the_looks_stays_within_alpha():
    alpha = 0.05
    for rate in false_alarms([alpha * share for share in SHARES]):
        assert 0.02 < rate <= alpha
    for rate in false_alarms([alpha] * 3):
        assert rate > alpha, "peeking without spending"


def run(name, level):
    values = np.full(80, 0.1 * np.exp(level))
    values[::2] *= 1.01
    held = {"step_time": Series(name="step_time", steps=np.arange(1, 81), values=values)}
    return Run(run_id=name, seed=None, series=held, learned=True, last_step=80)


def followed(policy, rng, spread, harm):
    """A whole plan, as a session with top-up would go: the last verdict and the candidate runs spent."""
    levels = {side: rng.normal(0, spread, 5) for side in "ab"}
    baseline = Version(model="m", version="1", runs=tuple(run(f"a{i}", x) for i, x in enumerate(levels["a"])))
    step = first_look(policy)
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
        ("smoke", 0.03, np.log(1.225), Outcome.BLOCK, 0.9),
        ("perf", 0.02, 0.0, Outcome.PASS, 0.95),
        ("perf", 0.02, np.log(1.12), Outcome.BLOCK, 0.95),
    ],
)
def test_a_plan_decides_as_often_as_it_should(tier, spread, harm, outcome, least):
    from canary_mlflow.policies import load_policy

    policy, rng = load_policy(tier), np.random.default_rng(7)
    found = [followed(policy, rng, spread, harm) for _ in range(150)]
    wrong = Outcome.BLOCK if outcome is Outcome.PASS else Outcome.PASS
    assert sum(each == outcome for each, _ in found) / 150 >= least
    assert sum(each == wrong for each, _ in found) / 150 <= 0.01
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
