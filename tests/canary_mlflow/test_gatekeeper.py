"""Who may become champion, on a real SQLite store: verdict, record, alias, and races for it."""

from __future__ import annotations

import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.artifacts import load_text
from mlflow.entities import Param

from canary_mlflow.commands.shared import print_decision
from canary_mlflow.errors import BaselineMoved, NoSuchModel, NoSuchVersion, StoreError, UsageError
from canary_mlflow.gates.model.policy import Bootstrap, FreshBaseline, Policy
from canary_mlflow.gates.model.verdict import Outcome, ReasonCode, verdict_from_dict
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.acts.by_hand import bless, override
from canary_mlflow.registry.acts.rollback import rollback
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.judging.assessment import Options, assess
from canary_mlflow.registry.judging.gatekeeper import enact, gate
from canary_mlflow.registry.judging.records import DESCRIPTION_LIMIT
from canary_mlflow.registry.judging.unregistered import gate_change, gate_session
from canary_mlflow.registry.sessions.registering import register_version
from canary_mlflow.registry.versions import champion_number
from canary_mlflow.reports.deciding import decided_by
from canary_mlflow.reports.terminal import render

STOPPED = {"canary.failure": "error", "canary.completed": "false"}


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy("smoke")


def test_first_version_begins_as_champion_by_bootstrap(recorded: Any, policy: Policy) -> None:
    version = recorded.version()
    decision = gate(recorded.client, recorded.model, version, policy)
    assert (decision.bootstrapped, decision.promoted, decision.exit_code) == (True, True, 0)
    assert decision.verdict.outcome is Outcome.INCONCLUSIVE
    assert recorded.champion() == version
    assert recorded.tags(version)["canary.verdict"] == "bootstrap"
    assert recorded.tags(version)["canary.baseline_version"] == "none"


def test_two_sessions_can_be_compared_in_mlflow_by_name_and_number(guarded: Any, policy: Policy) -> None:
    """A session has the means of its runs as metrics and their common params, and its name says its last verdict,
    version and change first. One that is blocked is red, and its runs are not; another verdict may change that."""

    def statuses(session: str) -> list[str]:
        return [guarded.client.get_run(one).info.status for one in (session, *guarded.children(session))]

    sessions = [guarded.session(), guarded.session(slower=2.0)]
    for session in sessions:
        guarded.client.update_run(session, name="dpo tiny-neox smoke")
        for number, run in enumerate(guarded.children(session)):
            guarded.client.log_batch(run, params=[Param("cfg/optim", "adamw"), Param("cfg/seed", str(number))])
        gate(guarded.client, guarded.model, guarded.register(session), policy)
    quick, slow = (guarded.client.get_run(session) for session in sessions)
    names = [f"{said}: no recorded change · dpo tiny-neox smoke" for said in ("PASS v2", "BLOCK v3")]
    assert [run.info.run_name for run in (quick, slow)] == names
    assert slow.data.tags["canary.changed"] == "no recorded change"
    times = [run.data.metrics["session/step_time"] for run in (quick, slow)]
    assert times[1] == pytest.approx(2 * times[0], rel=0.05)
    assert slow.data.metrics["session/eval_loss"] == pytest.approx(0.45, rel=0.05)
    gate(guarded.client, guarded.model, "3", policy)
    assert guarded.client.get_run(sessions[1]).info.run_name == names[1], "named once"
    assert [run.data.params for run in (quick, slow)] == [{"cfg/optim": "adamw"}] * 2
    assert [statuses(one) for one in sessions] == [["FINISHED"] * 4, ["FAILED", *["FINISHED"] * 3]]
    assert gate(guarded.client, guarded.model, "3", load_policy("files")).word == "PASS"  # which asks for no time
    assert statuses(sessions[1]) == ["FINISHED"] * 4


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_wide_terminal_shows_the_curve_that_decided(guarded: Any, policy: Policy, monkeypatch: Any) -> None:
    worse = guarded.session(slower=2.0)
    decision = gate(guarded.client, guarded.model, guarded.register(worse), policy)
    assert decided_by(decision)[0] == "step_cost"
    here = decision.store
    for columns, store, there in (("100", here, 2), ("99", here, 0), ("100", "sqlite:////no/db", 0)):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setattr("sys.stdout", screen := Terminal())
        print_decision(replace(decision, store=store), full=False)
        curves = re.findall(r"step cost  (?:baseline |candidate)  (\S{40})  (\S+) kernels", screen.getvalue())
        assert len(curves) == there, columns
        if curves:
            (quick, first), (slow, later) = curves
            assert (set(quick) <= set("▁▂"), set(slow) <= set("▇█")) == (True, True)
            assert float(later) == pytest.approx(2 * float(first), rel=0.1)


def test_a_run_that_is_a_versions_evidence_itself_is_left_as_it_is(recorded: Any, policy: Policy) -> None:
    run_id = recorded.children(recorded.session())[0]
    recorded.client.create_registered_model(recorded.model)
    before = recorded.client.get_run(run_id)
    recorded.client.create_model_version(recorded.model, f"{before.info.artifact_uri}/model", run_id=run_id)
    gate(recorded.client, recorded.model, "1", policy)
    after = recorded.client.get_run(run_id)
    assert (after.info.run_name, after.data.metrics) == (before.info.run_name, before.data.metrics)


def test_manual_bootstrap_leaves_a_candidate(recorded: Any, policy: Policy) -> None:
    version = recorded.version()
    decision = gate(recorded.client, recorded.model, version, replace(policy, bootstrap=Bootstrap.MANUAL))
    assert (decision.promoted, decision.exit_code) == (False, 3)
    assert recorded.champion() is None
    assert recorded.tags(version)["canary.verdict"] == "INCONCLUSIVE"
    assert f"canary bless {recorded.model} 1 --reason" in recorded.description(version)


def test_unchanged_second_version_passes_and_is_recorded_everywhere(guarded: Any, policy: Policy) -> None:
    first, second = "1", guarded.version()
    decision = gate(guarded.client, guarded.model, second, policy)
    assert (decision.verdict.outcome, decision.promoted, decision.exit_code) == (Outcome.PASS, True, 0)
    assert (decision.champion_before, decision.champion_after) == (first, second)
    assert guarded.champion() == second
    tags = guarded.tags(second)
    assert (tags["canary.verdict"], tags["canary.baseline_version"], tags["canary.policy"]) == ("PASS", first, "smoke")
    assert tags["canary.verdict_reason"] == decision.verdict.reason
    description = guarded.description(second)
    assert description.startswith("### PASS v2: ")
    session = guarded.client.get_run(tags["canary.session_id"])
    assert session.data.tags["canary.verdict"] == "PASS"
    assert session.data.tags["canary.version"] == second
    assert session.data.tags["mlflow.note.content"] == description
    assert load_text(f"{session.info.artifact_uri}/report.md") == description
    plain = json.loads(load_text(f"{session.info.artifact_uri}/verdict.json"))
    assert verdict_from_dict(plain["verdict"]).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("session", "outcome", "code"),
    [
        ({"slower": 2.0}, Outcome.BLOCK, ReasonCode.REGRESSION),
        ({"nan_at": 20}, Outcome.BLOCK, ReasonCode.HARD_GATE),
        ({"tags": {"canary.workload.max_steps": "99"}}, Outcome.INCONCLUSIVE, ReasonCode.NOT_COMPARABLE),
        ({"tags": {"canary.hardware.device": "other CPU"}}, Outcome.INCONCLUSIVE, ReasonCode.NOT_COMPARABLE),
        ({"without": ["quality/eval_loss"]}, Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA),
        ({"tags": STOPPED}, Outcome.INCONCLUSIVE, ReasonCode.BROKEN_OFF),
    ],
)  # fmt: skip
def test_anything_but_a_pass_leaves_the_champion(guarded: Any, policy, session, outcome, code) -> None:
    first, second = "1", guarded.version(**session)
    decision = gate(guarded.client, guarded.model, second, policy)
    assert (decision.verdict.outcome, decision.verdict.reason_code) == (outcome, code)
    assert decision.exit_code == {Outcome.BLOCK: 1, Outcome.INCONCLUSIVE: 3}[outcome]
    assert not decision.promoted
    assert guarded.champion() == first
    assert guarded.tags(second)["canary.verdict"] == outcome.value


@pytest.mark.parametrize(
    ("tag", "sentence"),
    [("canary.invariants", "broken: the reference model changed"), ("canary.watch.critical_held", "kl held critical")],
)
def test_what_probes_and_watch_recorded_blocks(guarded: Any, policy: Policy, tag: str, sentence: str) -> None:
    verdict = gate(guarded.client, guarded.model, guarded.version(tags={tag: sentence}), policy).verdict
    assert (verdict.outcome, verdict.reason_code) == (Outcome.BLOCK, ReasonCode.HARD_GATE)
    assert sentence.removeprefix("broken: ") in verdict.reason


def test_a_run_that_was_interrupted_after_its_loss_was_lost_blocks(guarded: Any, policy: Policy) -> None:
    session = guarded.session()
    lost = guarded.run(session, 3, slower=1.0, tags={}, nan_at=20, without=[])
    for tag, value in (("failure", "interrupted"), ("failure_reason", "KeyboardInterrupt"), ("nan_steps", "0")):
        guarded.client.set_tag(lost, f"canary.{tag}", value)
    verdict = gate(guarded.client, guarded.model, guarded.register(session), policy).verdict
    assert (verdict.outcome, verdict.reason_code) == (Outcome.BLOCK, ReasonCode.HARD_GATE)
    assert "first at step 21 (loss), before it was interrupted" in verdict.reason


def test_a_broken_first_version_is_no_bootstrap(recorded: Any, policy: Policy) -> None:
    version = recorded.version(nan_at=20)
    decision = gate(recorded.client, recorded.model, version, policy)
    assert (decision.exit_code, decision.bootstrapped) == (1, False)
    assert recorded.champion() is None


def test_dry_run_writes_nothing(guarded: Any, policy: Policy) -> None:
    first, second = "1", guarded.version()
    session = guarded.tags(second)["canary.session_id"]
    before = (guarded.tags(second), dict(guarded.client.get_run(session).data.tags))
    decision = gate(guarded.client, guarded.model, second, policy, dry_run=True)
    assert (decision.exit_code, decision.promoted, decision.champion_after) == (0, False, first)
    assert guarded.champion() == first
    assert (guarded.tags(second), dict(guarded.client.get_run(session).data.tags)) == before
    assert guarded.client.list_artifacts(session) == []


def test_a_dry_run_promises_nothing_that_the_gate_would_refuse(guarded: Any, policy: Policy) -> None:
    """Another run's files beside good runs."""
    good = guarded.tags(guarded.version())["canary.session_id"]
    other = guarded.children(guarded.tags("1")["canary.session_id"])[0]
    source = f"{guarded.client.get_run(other).info.artifact_uri}/model"
    made = guarded.client.create_model_version(guarded.model, source, run_id=other, tags={"canary.session_id": good})
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="is not in the session whose"):
            gate(guarded.client, guarded.model, str(made.version), policy, dry_run=dry_run)


def test_the_champion_is_not_judged_against_itself(guarded: Any, policy: Policy) -> None:
    with pytest.raises(UsageError, match="it is the champion already"):
        gate(guarded.client, guarded.model, "1", policy)


def test_unknown_names_list_what_there_is(guarded: Any, policy: Policy) -> None:
    with pytest.raises(NoSuchModel, match=rf"not in the registry; models: {guarded.model}"):
        gate(guarded.client, guarded.model[:-1], "1", policy)
    for wrong in ("7", "latest", "-1", ""):
        with pytest.raises(NoSuchVersion, match=r"not in the registry; versions: 1"):
            gate(guarded.client, guarded.model, wrong, policy)


def test_nothing_is_written_when_the_champion_moved_meanwhile(guarded: Any, policy: Policy) -> None:
    second, third = guarded.version(), guarded.version()
    judged = assess(guarded.client, guarded.model, second, policy, Options())
    bless(guarded.client, guarded.model, third, "faster on the real data")
    with pytest.raises(
        BaselineMoved, match=r"judged against version 1 \(ledger row \d+\), but the champion is version 3"
    ):
        enact(registry_of(guarded.client), judged)
    assert guarded.champion() == third
    assert "canary.verdict" not in guarded.tags(second)
    assert gate(guarded.client, guarded.model, second, policy).champion_before == third


def test_three_gates_at_once_leave_one_chain_of_ever_newer_champions(recorded: Any, policy: Policy) -> None:
    versions = [recorded.version() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        decisions = list(pool.map(lambda one: gate(MlflowClient(recorded.uri), recorded.model, one, policy), versions))
    assert [decision.exit_code for decision in decisions] == [0, 0, 0]
    assert sum(decision.bootstrapped for decision in decisions) == 1
    successor = {one.champion_before: one.version for one in decisions if one.promoted}
    chain = [successor[None]]
    while chain[-1] in successor:
        chain.append(successor[chain[-1]])
    assert (chain, len(chain)) == (sorted(chain), len(successor))
    assert recorded.champion() == chain[-1] == versions[-1]


def test_three_sessions_register_at_once(recorded: Any) -> None:
    sessions = [recorded.client.create_run(recorded.experiment).info.run_id for _ in range(3)]
    runs = [recorded.client.create_run(recorded.experiment).info.run_id for _ in range(3)]

    def register(number: int) -> str:
        return register_version(MlflowClient(recorded.uri), recorded.model, sessions[number], runs[number])

    with ThreadPoolExecutor(3) as pool:
        versions = list(pool.map(register, range(3)))
    assert sorted(versions) == ["1", "2", "3"]
    for session, run_id, version in zip(sessions, runs, versions, strict=True):
        found = recorded.client.get_model_version(recorded.model, version)
        assert (found.tags["canary.session_id"], found.run_id) == (session, run_id)
        assert found.source == f"{recorded.client.get_run(run_id).info.artifact_uri}/model"


def test_champion_is_none_until_there_is_one(recorded: Any, usual_session: str) -> None:
    version = recorded.register(usual_session)
    assert champion_number(recorded.client, recorded.model) is None
    bless(recorded.client, recorded.model, version, "the first one")
    assert champion_number(recorded.client, recorded.model) == version


def test_a_crashed_session_is_judged_without_version_or_model(recorded: Any, policy: Policy) -> None:
    session = recorded.session(nan_at=20)
    decision = gate_session(recorded.client, "never-registered", session, policy)
    assert (decision.verdict.outcome, decision.exit_code, decision.version) == (Outcome.BLOCK, 1, None)
    tags = recorded.client.get_run(session).data.tags
    assert tags["canary.verdict"] == "BLOCK"
    assert "canary.version" not in tags
    assert recorded.client.search_registered_models("name = 'never-registered'") == []


def test_a_sound_session_without_version_is_never_bootstrapped(
    recorded: Any, policy: Policy, usual_session: str
) -> None:
    decision = gate_session(recorded.client, recorded.model, usual_session, policy)
    assert (decision.exit_code, decision.bootstrapped) == (3, False)


@pytest.mark.parametrize(("slower", "outcome"), [(1.0, Outcome.PASS), (2.0, Outcome.BLOCK)])
def test_a_change_is_judged_beside_the_champion_and_registers_nothing(
    guarded: Any, policy: Policy, slower: float, outcome: Outcome
) -> None:
    session = guarded.session(slower=slower)
    decision = gate_change(guarded.client, guarded.model, session, policy)
    assert (decision.verdict.outcome, decision.champion_before, decision.version) == (outcome, "1", None)
    assert guarded.champion() == "1"
    assert len(guarded.client.search_model_versions(f"name = '{guarded.model}'")) == 1
    assert guarded.client.get_run(session).data.tags["canary.verdict"] == str(outcome)
    assert "no version was registered" in " ".join(render(decision).split())


def test_a_change_without_a_champion_is_inconclusive(recorded: Any, policy: Policy, usual_session: str) -> None:
    decision = gate_change(recorded.client, recorded.model, usual_session, policy)
    assert (decision.exit_code, decision.bootstrapped, decision.champion_before) == (3, False, None)
    assert "a session with register=true makes the first" in " ".join(render(decision).split())


def test_a_long_report_is_cut_in_the_description_only(guarded: Any, policy: Policy) -> None:
    many = {f"canary.env.package{number:03}": "a version string of some length" * 3 for number in range(60)}
    second = guarded.version(tags=many)
    gate(guarded.client, guarded.model, second, policy)
    found = guarded.client.get_model_version(guarded.model, second)
    session = guarded.tags(second)["canary.session_id"]
    whole = load_text(f"{guarded.client.get_run(session).info.artifact_uri}/report.md")
    assert len(whole) > DESCRIPTION_LIMIT >= len(found.description)
    assert f"more lines: report.md of run {session}" in found.description


def test_bless_keeps_name_reason_and_former_champion(guarded: Any, policy: Policy) -> None:
    first, second = "1", guarded.version(tags={"canary.workload.max_steps": "99"})
    gate(guarded.client, guarded.model, second, policy)
    blessing = bless(guarded.client, guarded.model, second, "  longer runs\nfrom now on ")
    assert guarded.champion() == second
    tags = guarded.tags(second)
    assert tags["canary.verdict"] == "blessed"
    assert tags["canary.bless_reason"] == "longer runs from now on"
    assert (tags["canary.blessed_over"], tags["canary.baseline_version"]) == ("INCONCLUSIVE", first)
    assert (tags["canary.blessed_by"], tags["canary.blessed_at"]) == (blessing.who, blessing.when)
    description = guarded.description(second)
    assert description.startswith("**BLESSED** by ")
    assert "### INCONCLUSIVE v2: " in description


def test_bless_refuses_without_reason_and_over_a_block(guarded: Any, policy: Policy) -> None:
    first, second = "1", guarded.version(slower=2.0)
    gate(guarded.client, guarded.model, second, policy)
    for version, reason, message in (
        (second, " \n", "--reason: found an empty text"),
        (second, "why not", "the gate blocked it (Step cost"),
        (first, "why not", "it is the champion already"),
    ):
        with pytest.raises(UsageError) as refused:
            bless(guarded.client, guarded.model, version, reason)
        assert message in str(refused.value)
    assert guarded.champion() == first
    assert guarded.tags(second)["canary.verdict"] == "BLOCK"
    bless(guarded.client, guarded.model, second, "the slow path is the correct one", despite_block=True)
    assert guarded.champion() == second
    assert guarded.tags(second)["canary.overridden_over"] == "BLOCK"
    rollback(guarded.client, guarded.model, "a trial")
    with pytest.raises(UsageError, match=r"the gate blocked it \(its override changed nothing about that; canary"):
        bless(guarded.client, guarded.model, second, "again")
    override(guarded.client, guarded.model, second, "again, over the same BLOCK")
    assert guarded.tags(second)["canary.overridden_over"] == "BLOCK"


def test_a_held_registry_lock_is_said_in_one_line(recorded: Any) -> None:
    with (
        registry_of(recorded.client).registering(),
        pytest.raises(StoreError, match=r"mlflow\.db\.registry\.lock has been held for 0 s"),
        registry_of(MlflowClient(recorded.uri)).registering(wait=0.1),
    ):
        pytest.fail("two promoters held the lock")


@pytest.mark.parametrize(("fresh", "word"), [("always", "PASS"), ("never", "BLOCK")])
def test_the_speed_of_an_anchor_of_another_host_is_no_drift(
    recorded: Any, policy: Policy, fresh: str, word: str
) -> None:
    """Where speed is judged by fresh runs of today, an anchor has none; what follows from the code it still shows."""
    looks = replace(policy.looks, fresh_baseline=FreshBaseline(fresh))
    policy = replace(policy, anchor_margins=1.0, looks=looks)
    for slower, host in ((1.0, "quick"), (1.08, "slow"), (1.16, "slow"), (1.27, "slow")):
        version = recorded.version(slower=slower, tags={"canary.env.host": host})
        decision = gate(recorded.client, recorded.model, version, policy)
    assert decision.word == word
    if word == "PASS":
        assert "BLOCK by step_cost, run_cost, which is no harm: it was made on another host" in " ".join(
            decision.verdict.notes
        )


def test_small_steps_that_each_pass_are_stopped_by_the_anchor(recorded: Any, policy: Policy) -> None:
    policy = replace(policy, anchor_margins=1.0)
    steps = [(1.0, "bootstrap"), (1.08, "PASS"), (1.16, "PASS"), (1.27, "BLOCK")]
    for slower, word in steps:
        decision = gate(recorded.client, recorded.model, recorded.version(slower=slower), policy)
        assert (slower, decision.word) == (slower, word)
    assert decision.verdict.reason.startswith("Slow drift, against the anchor (version 1): Step cost")
    assert "step_cost, anchor" in {check.metric for check in decision.verdict.checks}
    assert recorded.champion() == "3"
    assert str(recorded.client.get_registered_model(recorded.model).aliases["anchor"]) == "1"
