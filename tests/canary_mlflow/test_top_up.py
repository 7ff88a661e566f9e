"""A plan of looks carried out on recorded runs: what is made, in which order, and when it ends."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import Any

import pytest
from plans import AtOnce, beat, late_policy, looks, plan, with_fresh

from canary_mlflow.gates.model.policy import Policy, WithoutSource
from canary_mlflow.gates.model.rules import Role
from canary_mlflow.gates.model.verdict import Outcome
from canary_mlflow.launching.plan import Plan
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.acts.by_hand import bless
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.reports.terminal import render


@pytest.fixture(scope="module")
def late() -> Policy:
    return late_policy()


def test_added_runs_are_children_of_the_session_and_decide(guarded: Any, late: Policy) -> None:
    going = plan(guarded, late)
    decision = going.carry_out()
    assert (decision.verdict.outcome, decision.promoted, decision.verdict.look) == (Outcome.PASS, True, 2)
    assert going.runner.calls == ["c1", "c2"]
    session = guarded.tags(going.version)["canary.session_id"]
    assert sorted(decision.verdict.candidate_runs) == sorted(guarded.children(session))
    assert looks(guarded, session) == {"1": [1, 3]}
    assert guarded.champion() == going.version
    assert "look 2 of 2: decided: PASS" in decision.verdict.notes


def test_pairs_that_end_side_by_side_are_named_once_all_are_marked(guarded: Any, late: Policy) -> None:
    decision = (going := plan(guarded, with_fresh(late), maker=AtOnce)).carry_out()
    assert (decision.verdict.outcome, decision.promoted) == (Outcome.PASS, True), decision.verdict.reason
    assert guarded.champion() == going.version


def test_a_slowdown_blocks_at_the_look_that_shows_it(guarded: Any, late: Policy) -> None:
    decision = (going := plan(guarded, late, slower=1.5)).carry_out()
    assert (decision.verdict.outcome, going.runner.calls) == (Outcome.BLOCK, ["c1", "c2"])
    assert guarded.champion() == "1"


def test_a_first_look_that_finds_nothing_owes_the_runs_of_a_champion_before_it_is_one(guarded: Any) -> None:
    going = plan(guarded, load_policy("smoke"))
    seen: list[str | None] = []
    going.say = lambda line: seen.append(guarded.champion())
    decision = going.carry_out()
    assert (decision.verdict.outcome, decision.verdict.look, decision.promoted) == (Outcome.PASS, 2, True)
    assert going.runner.calls == ["c1", "c2"], "as many as the champion that it replaces"
    assert (set(seen), guarded.champion()) == ({"1"}, going.version), "the alias moves after the last of them"
    assert len(decision.verdict.candidate_runs) == 3, "one verdict covers all runs"


def test_an_owed_run_that_diverges_blocks(guarded: Any) -> None:
    going = plan(guarded, load_policy("smoke"), diverging=(1,))
    decision = going.carry_out()
    assert (decision.verdict.outcome, decision.exit_code, guarded.champion()) == (Outcome.BLOCK, 1, "1")
    assert guarded.tags(going.version)["canary.verdict"] == "BLOCK"
    assert "1 of 3 runs" in decision.verdict.reason


@pytest.mark.full
def test_a_champion_with_more_runs_than_the_plan_is_replaced_by_as_many(recorded: Any) -> None:
    bless(recorded.client, recorded.model, recorded.version(runs=5), "many runs")
    decision = (going := plan(recorded, load_policy("smoke"))).carry_out()
    assert (decision.verdict.outcome, decision.promoted, len(going.runner.calls)) == (Outcome.PASS, True, 4)
    assert looks(recorded, recorded.tags(going.version)["canary.session_id"]) == {"1": [1, 5]}


def test_a_first_version_gets_the_runs_of_a_baseline_before_it_is_champion(recorded: Any) -> None:
    decision = (going := plan(recorded, load_policy("smoke"))).carry_out()
    assert (decision.bootstrapped, decision.promoted, recorded.champion()) == (True, True, going.version)
    assert len(decision.verdict.candidate_runs) == 3


def test_a_dry_run_that_finds_nothing_says_what_a_champion_would_need(guarded: Any) -> None:
    going = replace(plan(guarded, load_policy("smoke")), dry_run=True)
    notes = " ".join(going.carry_out().verdict.notes)
    assert "look 1 of 2: nothing found in 1 candidate run, a champion needs 3, would make 2 more runs" in notes
    assert going.runner.calls == []


def test_a_version_whose_owed_runs_cannot_be_made_is_not_promoted(guarded: Any) -> None:
    """As where the candidate's changes were never committed."""
    going = plan(guarded, load_policy("smoke"), gone="its runs were made with changes that its commit does not hold")
    decision = going.carry_out()
    assert (decision.verdict.outcome, decision.promoted, guarded.champion()) == (Outcome.PASS, False, "1")
    assert "its runs were made with changes" in str(decision.verdict.notes)
    assert "a champion needs 3, as version 1 has. Train it again with repeats=3." in " ".join(render(decision).split())


def test_what_no_affordable_number_would_decide_ends_at_once(guarded: Any, late: Policy) -> None:
    rules = tuple(replace(rule, margin=0.0046) if rule.name == "step_cost" else rule for rule in late.rules)
    going = plan(guarded, replace(late, rules=rules))
    decision = going.carry_out()
    assert (decision.verdict.outcome, going.runner.calls) == (Outcome.INCONCLUSIVE, [])
    assert "step_cost: no number of runs would decide" in str(decision.verdict.notes), decision.verdict


def test_fresh_baseline_runs_come_in_the_order_b_c_c_b(guarded: Any, late: Policy) -> None:
    going = plan(guarded, with_fresh(late), today=1.4)
    decision = going.carry_out()
    assert going.runner.calls == ["b1", "c1", "c2", "b2"]
    assert decision.verdict.outcome is Outcome.PASS, "the machine is slower today, for both sides"
    cost = next(check for check in decision.verdict.checks if check.metric == "step_cost")
    assert (cost.evidence.paired, cost.evidence.baseline_runs) == (False, 2), "pairs count from three on"
    assert len(decision.verdict.baseline_runs) == 3 + 2


@pytest.mark.parametrize(
    ("lost", "outcome", "calls", "said"),
    [
        ("", Outcome.BLOCK, ["c1", "c1", "b1"], "made beside on this host, finished"),
        pytest.param(
            "commit 123 is gone",
            Outcome.INCONCLUSIVE,
            ["c1", "c1"],
            "no run of the baseline's code was made beside it",
            marks=pytest.mark.full,
        ),
    ],
)
def test_an_exception_of_an_added_run_is_looked_into(guarded, late, lost, outcome, calls, said) -> None:
    going = plan(guarded, late, raising=(1,), lost=lost)
    decision = going.carry_out()
    assert (decision.verdict.outcome, going.runner.calls) == (outcome, calls)
    assert said in decision.verdict.reason
    assert lost in str(decision.verdict.notes)


@pytest.mark.parametrize("failure", ["interrupted", pytest.param("error", marks=pytest.mark.full)])
def test_the_seed_of_a_run_that_was_broken_off_is_made_again(guarded: Any, late: Policy, failure: str) -> None:
    """The champion's run of that seed would be without a partner for good."""
    going = plan(guarded, late)
    broken = going.runner.record(1, 1.0, {"canary.failure": failure})
    guarded.client.set_terminated(broken, "FAILED")
    decision = going.carry_out()
    assert going.runner.calls == ["c1", "c2"]
    assert decision.verdict.outcome is Outcome.PASS


@pytest.mark.full
def test_the_first_run_gets_its_fresh_one_too_where_it_was_made_here_and_today(guarded: Any, late: Policy) -> None:
    would = replace(plan(guarded, with_fresh(late), host=platform.node()), dry_run=True).carry_out()
    said = "would make 2 more runs (seeds 1, 2), each beside a fresh run of the champion (order b c c b), after one for"
    assert f"{said} each existing run (seeds 0)" in str(would.verdict.notes)
    going = plan(guarded, with_fresh(late), host=platform.node(), today=1.4)
    decision = going.carry_out()
    assert going.runner.calls == ["b0", "b1", "c1", "c2", "b2"]
    cost = next(check for check in decision.verdict.checks if check.metric == "step_cost")
    assert (cost.evidence.paired, cost.evidence.baseline_runs) == (True, 3)


@pytest.mark.parametrize("without", list(WithoutSource))
def test_a_champion_whose_code_is_lost_is_said_and_handled_as_the_policy_says(guarded, late, without) -> None:
    going = plan(guarded, with_fresh(late, without), lost="commit 123 is gone")
    decision = going.carry_out()
    assert any("commit 123 is gone" in note for note in decision.verdict.notes)
    if without is WithoutSource.UNPAIRED:
        assert (decision.verdict.outcome, going.runner.calls) == (Outcome.PASS, ["c1", "c2"])
    else:
        assert (decision.verdict.outcome, going.runner.calls) == (Outcome.INCONCLUSIVE, [])
        assert guarded.tags(going.version)["canary.verdict"] == "INCONCLUSIVE"


def test_a_dry_run_says_what_would_be_made_and_makes_nothing(guarded: Any, late: Policy) -> None:
    going = replace(plan(guarded, with_fresh(late)), dry_run=True)
    decision = going.carry_out()
    assert (decision.verdict.outcome, decision.dry_run, going.runner.calls) == (Outcome.INCONCLUSIVE, True, [])
    assert "would make 2 more runs (seeds 1, 2), each beside a fresh run of the champion (order b c c b)" in str(
        decision.verdict.notes
    )
    assert "canary.verdict" not in guarded.tags(going.version)


def contended(guarded: Any, policy: Policy, **making: Any) -> Plan:
    """A version whose only run had a neighbour, beside a champion whose runs had none."""
    if not guarded.client.search_model_versions(f"name='{guarded.model}'"):
        session = guarded.session()
        for run_id in guarded.children(session):
            beat(guarded, run_id, 0.010)
        gate(guarded.client, guarded.model, guarded.register(session), policy)
    return plan(guarded, policy, beats=0.013, **making)


@pytest.fixture(scope="module")
def by_the_clock(late: Policy) -> Policy:
    """The plan's policy, with a clock that decides on a CPU too."""
    roles = {"step_time": Role.GATE, "step_cost": Role.ADVISORY}
    rules = tuple(replace(rule, role=roles.get(rule.name, rule.role)) for rule in late.rules)
    return replace(late, rules=rules, overlays=())


@pytest.mark.full
def test_runs_made_again_use_up_no_look(recorded: Any, by_the_clock: Policy) -> None:
    going = contended(recorded, by_the_clock, slower=1.5, sentinels=(0.013, 0.010))
    decision = going.carry_out()
    assert going.runner.calls == ["c0", "c0", "c1", "c2"]
    assert (decision.verdict.outcome, decision.verdict.look, decision.verdict.planned_runs) == (Outcome.BLOCK, 2, 3)


def test_a_contended_run_is_made_again_twice_and_not_more(recorded: Any, by_the_clock: Policy) -> None:
    guarded, policy = recorded, by_the_clock
    going = contended(guarded, policy, sentinels=(0.013,))
    decision = going.carry_out()
    assert going.runner.calls == ["c0", "c0"]
    assert decision.verdict.outcome is Outcome.INCONCLUSIVE
    assert "no candidate run has a usable clock" in str([check.reason for check in decision.verdict.checks])
    again = contended(guarded, replace(policy, validity=replace(policy.validity, reruns=0)), sentinels=(0.013,))
    again.carry_out()
    assert again.runner.calls == []
