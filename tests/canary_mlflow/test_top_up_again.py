"""A plan of looks that is resumed: after Ctrl-C, after a run that broke off, after its evidence changed."""

from __future__ import annotations

import platform
import signal
from dataclasses import replace
from typing import Any

import pytest
from plans import late_policy, looks, plan, with_fresh

from canary_mlflow.errors import CanaryError, NoSource, UsageError
from canary_mlflow.gates.model.policy import Policy, WithoutSource
from canary_mlflow.gates.model.verdict import Outcome, ReasonCode
from canary_mlflow.launching import projects
from canary_mlflow.launching.plan import Plan
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.registry.judging.looks import Taken, evidence_of, note_look
from canary_mlflow.tags import LOOKS
from canary_mlflow.tracking.reading.histories import read_version
from canary_mlflow.tracking.signals import Terminated


@pytest.fixture(scope="module")
def late() -> Policy:
    return late_policy()


def session_of(guarded: Any, going: Plan) -> str:
    session: str = guarded.tags(going.version)["canary.session_id"]
    return session


def break_off(guarded: Any, going: Plan, seed: int) -> None:
    """A run of this seed that failed for a reason unknown."""
    run_id = going.runner.record(seed, 1.0, {"canary.failure": "error"})
    guarded.client.set_terminated(run_id, "FAILED")
    going.record_runs()


def test_a_plan_goes_on_where_it_stopped_and_ends_when_it_is_spent(guarded: Any, late: Policy) -> None:
    going = plan(guarded, late, slower=1.5)
    first = gate(guarded.client, guarded.model, going.version, late, by_plan=True)
    assert (first.verdict.look, first.verdict.policy["alpha_block"]) == (1, pytest.approx(0.01 * 0.001))
    session = guarded.tags(going.version)["canary.session_id"]
    assert looks(guarded, session) == {"1": [1]}
    again = gate(guarded.client, guarded.model, going.version, late, by_plan=True)
    assert (again.verdict.look, looks(guarded, session)) == (1, {"1": [1]}), "the same evidence costs nothing again"
    going.runner.run(0)  # as after a rerun: other evidence of no more runs of the plan
    going.record_runs()
    other = gate(guarded.client, guarded.model, going.version, late, by_plan=True)
    assert (other.verdict.look, other.verdict.policy["alpha_block"]) == (2, pytest.approx(0.01 * 0.999))
    assert looks(guarded, session) == {"1": [1, 1]}
    for seed in range(1, 6):
        going.runner.run(seed)
    going.record_runs()
    with pytest.raises(UsageError, match="its plan of looks is spent"):
        gate(guarded.client, guarded.model, going.version, late, by_plan=True)


def test_a_look_is_spent_though_its_verdict_was_never_told(
    guarded: Any, late: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = plan(guarded, late)

    def broken(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("canary_mlflow.registry.judging.gatekeeper.enact", broken)
    with pytest.raises(KeyboardInterrupt):
        gate(guarded.client, guarded.model, going.version, late, by_plan=True)
    assert looks(guarded, guarded.tags(going.version)["canary.session_id"]) == {"1": [1]}


def test_the_looks_beside_one_champion_are_kept_while_another_stands(guarded: Any) -> None:
    session = guarded.tags(plan(guarded, load_policy("smoke")).version)["canary.session_id"]
    for champion, runs in (("1", 1), ("2", 1), ("1", 3)):
        note_look(guarded.client, session, champion, Taken(runs=runs, evidence="0a"))
    assert looks(guarded, session) == {"1": [1, 3], "2": [1]}


def test_what_broke_off_at_the_last_look_is_made_again_before_it(guarded: Any, late: Policy) -> None:
    """A look at the others would spend what is left of the plan and decide nothing."""
    going = plan(guarded, late)
    for seed in (1, 2):
        going.runner.record(seed, 1.0, {})
    broken = going.runner.record(3, 1.0, {"canary.failure": "error"})
    guarded.client.set_terminated(broken, "FAILED")
    decision = going.carry_out()
    assert (going.runner.calls, decision.verdict.outcome) == (["c3"], Outcome.PASS)


def test_what_broke_off_and_cannot_be_made_again_leaves_a_verdict_and_says_why(guarded: Any, late: Policy) -> None:
    going = plan(guarded, late, gone="commit 123 is gone")
    broken = going.runner.record(1, 1.0, {"canary.failure": "error"})
    guarded.client.set_terminated(broken, "FAILED")
    said: list[str] = []
    decision = replace(going, say=said.append).carry_out()
    assert decision.verdict.reason_code is ReasonCode.BROKEN_OFF
    assert "commit 123 is gone" in said[0]
    assert "commit 123 is gone" in str(decision.verdict.notes)


@pytest.mark.parametrize("calls", [2, *(pytest.param(at, marks=pytest.mark.full) for at in (1, 3, 4))])
def test_a_plan_that_was_stopped_goes_on_to_the_look_it_was_on_the_way_to(
    guarded: Any, late: Policy, calls: int
) -> None:
    """Fresh runs and one more of the candidate are other evidence, but no look that was planned."""
    going = plan(guarded, with_fresh(late), host=platform.node(), stop_at=calls)
    with pytest.raises(KeyboardInterrupt):
        going.carry_out()
    decision = replace(going, step=None).carry_out()
    assert sorted(going.runner.calls) == ["b0", "b1", "b2", "c1", "c2"]
    assert (decision.verdict.outcome, decision.verdict.look, decision.verdict.planned_runs) == (Outcome.PASS, 2, 3)
    assert looks(guarded, session_of(guarded, going)) == {"1": [1, 3]}


@pytest.mark.parametrize("calls", [pytest.param(0, marks=pytest.mark.full), 1])
def test_a_version_that_owes_runs_and_was_stopped_is_no_champion_and_gets_them_later(guarded: Any, calls: int) -> None:
    going = plan(guarded, load_policy("smoke"), stop_at=calls)
    with pytest.raises(KeyboardInterrupt):
        going.carry_out()
    assert (guarded.champion(), guarded.tags(going.version)["canary.verdict"]) == ("1", "PASS")
    decision = replace(going, step=None).carry_out()
    assert (going.runner.calls, decision.promoted, guarded.champion()) == (["c1", "c2"], True, going.version)
    assert looks(guarded, session_of(guarded, going)) == {"1": [1, 3]}


@pytest.mark.parametrize(
    ("seed", "calls"), [(1, ["c1", "c1", "c2"]), pytest.param(2, ["c1", "c2", "c2"], marks=pytest.mark.full)]
)
def test_a_run_that_broke_off_on_the_way_to_a_look_is_made_again_and_counts(
    guarded: Any, late: Policy, seed: int, calls: list[str]
) -> None:
    going = plan(guarded, late, failing=(seed,))
    with pytest.raises(CanaryError, match="broke off"):
        going.carry_out()
    going.runner.failing = ()
    decision = replace(going, step=None).carry_out()
    assert (going.runner.calls, decision.verdict.outcome) == (calls, Outcome.PASS)
    assert looks(guarded, session_of(guarded, going)) == {"1": [1, 3]}


@pytest.mark.full
def test_what_is_made_again_gets_a_fresh_run_beside_it_too(guarded: Any, late: Policy) -> None:
    going = plan(guarded, with_fresh(late), host=platform.node(), failing=(2,))
    with pytest.raises(CanaryError, match="broke off"):
        going.carry_out()
    going.runner.failing = ()
    decision = replace(going, step=None).carry_out()
    assert going.runner.calls == ["b0", "b1", "c1", "c2", "c2", "b2"]
    assert decision.verdict.planned_runs == 3
    assert not any("for want of a fresh run" in note for note in decision.verdict.notes)


def test_no_look_is_spent_on_the_way_to_it_where_the_code_is_gone(guarded: Any, late: Policy) -> None:
    going = plan(guarded, late, stop_at=1)
    with pytest.raises(KeyboardInterrupt):
        going.carry_out()
    going.runner.gone = "commit 123 is gone"
    with pytest.raises(NoSource, match="commit 123 is gone; to judge what is there: canary gate without --top-up"):
        replace(going, step=None).carry_out()
    assert looks(guarded, session_of(guarded, going)) == {"1": [1]}


@pytest.mark.full
def test_no_look_is_spent_where_the_policy_does_not_go_on_without_fresh_runs(guarded: Any, late: Policy) -> None:
    policy = with_fresh(late, WithoutSource.INCONCLUSIVE)
    going = plan(guarded, policy, host=platform.node(), unfresh=(1,))
    with pytest.raises(CanaryError, match="the policy does not go on without one"):
        going.carry_out()
    assert guarded.champion() == "1"
    assert looks(guarded, session_of(guarded, going)) == {"1": [1]}
    going.runner.unfresh = ()
    decision = replace(going, step=None, lost="").carry_out()
    assert (decision.verdict.outcome, decision.verdict.planned_runs) == (Outcome.PASS, 3)


def test_nothing_is_made_again_for_other_work(guarded: Any, late: Policy) -> None:
    going = plan(guarded, with_fresh(late))
    going.runner.record(1, 1.0, {"canary.workload.data": "other"})
    break_off(guarded, going, 2)
    decision = going.carry_out()
    assert (decision.verdict.reason_code, going.runner.calls) == (ReasonCode.BROKEN_OFF, [])


def test_a_dry_run_says_which_look_a_stopped_plan_goes_on_to(guarded: Any, late: Policy) -> None:
    going = plan(guarded, late, stop_at=1)
    with pytest.raises(KeyboardInterrupt):
        going.carry_out()
    would = replace(going, step=None, dry_run=True).carry_out()
    assert "on the way to the look at 3 candidate runs: would make 1 more run (seeds 2)" in str(would.verdict.notes)
    assert "more runs are made from the code of the test" in would.verdict.notes


@pytest.mark.full
def test_a_look_that_was_kept_without_its_evidence_is_known_by_its_runs(guarded: Any, late: Policy) -> None:
    going = plan(guarded, late)
    guarded.client.set_tag(session_of(guarded, going), "canary.looks", "1: 1; \u00b2: x")
    decision = going.carry_out()
    assert (going.runner.calls, decision.verdict.look) == (["c1", "c2"], 2)
    assert looks(guarded, session_of(guarded, going)) == {"1": [1, 3]}


@pytest.mark.full
def test_nothing_is_made_again_beside_a_run_that_blocks(guarded: Any, late: Policy) -> None:
    going = plan(guarded, late)
    guarded.run(session_of(guarded, going), 1, slower=1.0, tags={}, nan_at=5, without=())
    break_off(guarded, going, 2)
    decision = going.carry_out()
    assert (decision.verdict.outcome, going.runner.calls) == (Outcome.BLOCK, [])


@pytest.mark.full
def test_a_stopped_plan_makes_nothing_more_of_what_blocks(guarded: Any, late: Policy) -> None:
    going = plan(guarded, late)
    gate(guarded.client, guarded.model, going.version, late, by_plan=True)
    guarded.run(session_of(guarded, going), 1, slower=1.0, tags={}, nan_at=5, without=())
    decision = going.carry_out()
    assert (decision.verdict.outcome, going.runner.calls) == (Outcome.BLOCK, [])


def test_a_seed_that_always_breaks_off_is_tried_as_often_as_the_policy_says(guarded: Any, late: Policy) -> None:
    going = plan(guarded, late, failing=(1,))
    with pytest.raises(CanaryError, match="broke off"):
        going.carry_out()
    decision = replace(going, step=None).carry_out()
    assert going.runner.calls == ["c1", "c1", "c1"]
    assert (decision.verdict.reason_code, decision.verdict.look) == (ReasonCode.BROKEN_OFF, 1)
    assert "look 1 of 2: what broke off is not made again, or not any more" in decision.verdict.notes
    again = replace(going, step=None).carry_out()
    assert (again.verdict.reason_code, len(going.runner.calls)) == (ReasonCode.BROKEN_OFF, 3)


def test_a_dry_run_says_what_would_be_made_again(guarded: Any, late: Policy) -> None:
    going = plan(guarded, late)
    break_off(guarded, going, 1)
    would = replace(going, dry_run=True).carry_out()
    assert "would first make again seed 1: it broke off" in str(would.verdict.notes)
    assert going.runner.calls == []


def test_nothing_is_made_for_a_look_that_is_refused(guarded: Any, late: Policy) -> None:
    going = plan(guarded, late)
    break_off(guarded, going, 1)
    guarded.client.set_tag(session_of(guarded, going), "canary.looks", "1: 1.aa 3.bb")
    with pytest.raises(UsageError, match="its plan of looks is spent"):
        going.carry_out()
    assert going.runner.calls == []


@pytest.mark.parametrize("role", ["run", "baseline"])
def test_a_signal_during_an_added_run_ends_the_plan_and_is_no_missing_code(
    guarded: Any, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    def stopped(*_: Any) -> None:
        raise Terminated(signal.SIGTERM)

    monkeypatch.setattr(projects, "run_project", stopped)
    going = plan(guarded, load_policy("smoke"))
    source: Any = None  # what is stopped before it begins asks for no code
    session = session_of(guarded, going)
    spec = projects.ProjectRun(name="n", store=guarded.uri, session=session, seed=1, role=role, source=source)
    with pytest.raises(Terminated, match="SIGTERM"):
        projects.launch(guarded.client, spec)


def test_nothing_is_made_for_the_champion(guarded: Any) -> None:
    champion = plan(guarded, load_policy("smoke"))
    assert champion.carry_out().promoted
    made = len(champion.runner.calls)
    break_off(guarded, champion, 7)
    with pytest.raises(UsageError, match="it is the champion already"):
        replace(champion, step=None).carry_out()
    assert len(champion.runner.calls) == made


@pytest.mark.parametrize("forged", ["", "1: 3.{now}"], ids=["taken away", "forged"])
def test_a_look_stays_spent_whatever_becomes_of_the_sessions_tag(guarded: Any, late: Policy, forged: str) -> None:
    """Whoever may edit the run could otherwise look as often as he likes, each time with the whole error level."""
    going = plan(guarded, late, slower=1.5)
    gate(guarded.client, guarded.model, going.version, late, by_plan=True)
    going.runner.run(1)
    going.runner.run(2)
    going.record_runs()
    champion = read_version(guarded.client, guarded.model, "1")
    candidate = read_version(guarded.client, guarded.model, going.version)
    now = evidence_of(run.run_id for run in (*candidate.runs, *champion.runs))
    session = session_of(guarded, going)
    if forged:
        guarded.client.set_tag(session, LOOKS, forged.format(now=now))
    else:
        guarded.client.delete_tag(session, LOOKS)
    second = gate(guarded.client, guarded.model, going.version, late, by_plan=True)
    assert (second.verdict.look, second.verdict.policy["alpha_block"]) == (2, pytest.approx(0.01 * 0.999))
