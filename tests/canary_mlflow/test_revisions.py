"""`canary ab` on recorded runs: the order of the runs, the pairs, when it ends, and what it leaves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from click.testing import CliRunner
from recorded import RAISED

from canary_mlflow.cli import canary
from canary_mlflow.gates.model.verdict import Outcome, ReasonCode
from canary_mlflow.launching.revisions import Revision, Trial, carry_out, first_pairs, report
from canary_mlflow.launching.runs import Here, Result, RunSpec
from canary_mlflow.policies import load_policy
from canary_mlflow.tracking.describing.failures import raised_from


@dataclass(frozen=True, kw_only=True)
class Recording(Trial, Here):
    """Both sides, and the runner of their runs: these are recorded instead of trained."""

    recorded: Any
    slower: float
    tags: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    raising: tuple[str, ...] = ()  # the calls that an exception ends; by side and seed, each time

    def spec(self, side: str, seed: int) -> RunSpec:
        return RunSpec(name=side, store="", session=self.sessions[side], seed=seed)

    def one(self, spec: RunSpec) -> Result:
        self.calls.append(call := f"{spec.name[0]}{spec.seed}")
        slower = self.slower if spec.name == "candidate" else 1.0
        raised = RAISED if call in self.raising else {}
        tags = self.tags | raised
        run_id = self.recorded.run(spec.session, spec.seed, slower=slower, tags=tags, nan_at=None, without=())
        return Result(seed=spec.seed, run_id=run_id, failure="error" if raised else "", raised=raised_from(raised))


def trial(recorded: Any, slower: float, **found: str) -> Recording:
    client = recorded.client
    parent = client.create_run(recorded.experiment, tags={"canary.role": "revisions"}).info.run_id
    tags = {"canary.role": "session", "mlflow.parentRunId": parent}
    sessions = {
        side: client.create_run(recorded.experiment, tags=tags).info.run_id for side in ("baseline", "candidate")
    }
    return Recording(
        client=client,
        parent=parent,
        revisions=sides(),
        sessions=sessions,
        overrides=(),
        policy=load_policy("smoke"),
        recorded=recorded,
        slower=slower,
        tags={f"canary.{key}": value for key, value in found.items()},
    )


@pytest.mark.parametrize(("slower", "outcome"), [(1.0, Outcome.PASS), (1.5, Outcome.BLOCK)])
def test_revisions_take_turns_and_are_judged_in_pairs(recorded: Any, slower: float, outcome: Outcome) -> None:
    going = trial(recorded, slower)
    verdict = carry_out(going, going, lambda line: None)
    assert going.calls == ["b0", "c0", "c1", "b1", "b2", "c2"]
    assert verdict.outcome is outcome
    cost = next(check for check in verdict.checks if check.metric == "step_cost")
    assert (cost.evidence.paired, cost.evidence.candidate_runs) == (True, 3)
    decision = report(going, verdict)
    tags = going.client.get_run(going.parent).data.tags
    assert tags["canary.verdict"] == outcome.value
    assert "HEAD (ffffffffff) against main (ffffffffff)" in tags["mlflow.note.content"]
    assert decision.exit_code == {Outcome.PASS: 0, Outcome.BLOCK: 1}[outcome]


def sides() -> dict[str, Revision]:
    return {side: Revision(name=name, commit="f" * 40) for side, name in (("baseline", "main"), ("candidate", "HEAD"))}


def test_a_canary_too_short_to_learn_blames_neither_side(recorded: Any) -> None:
    going = trial(recorded, 1.0, learned="false", learned_reason="loss 0.693 to 0.692")
    verdict = carry_out(going, going, lambda line: None)
    assert going.calls == ["b0", "c0", "c1", "b1", "b2", "c2"]
    decision = report(going, verdict)
    assert (decision.exit_code, verdict.reason_code) == (3, ReasonCode.FAILS_ALIKE)
    said = (
        "Not learned: 3 of 3 runs: learned nothing (loss 0.693 to 0.692); so did 3 of 3 of the baseline's: "
        "this canary is too short to say"
    )
    assert verdict.reason.startswith(said)
    assert "Train longer" in going.client.get_run(going.parent).data.tags["mlflow.note.content"]


@pytest.mark.parametrize(
    ("raising", "calls", "code", "said"),
    [
        (("c0",), ["b0", "c0", "c0"], 1, "made beside on this host, finished"),
        (("c1",), ["b0", "c0", "c1", "b1", "c1"], 1, "ended 2 of 2 runs of seed 1; the baseline's run of that seed"),
        (("b0", "c0"), ["b0", "c0", "b0", "c0"], 3, "the baseline broke off beside it too"),
        (("b0",), ["b0", "c0", "b0"], 3, "None of the baseline's 2 runs is evidence"),
    ],
)
def test_an_exception_ends_a_comparison_and_blocks_where_the_baseline_goes_through(
    recorded: Any, raising: tuple[str, ...], calls: list[str], code: int, said: str
) -> None:
    going = replace(trial(recorded, 1.0), raising=raising)
    verdict = carry_out(going, going, lambda line: None)
    assert (going.calls, report(going, verdict).exit_code) == (calls, code)
    assert said in verdict.reason
    if code == 1:
        assert verdict.reason_code is ReasonCode.CRASH
        assert verdict.reason.startswith(
            "AttributeError at trl/trainer/utils.py:1638 in apply ended 2 of 2 runs of seed"
        )


def test_its_sessions_can_be_compared_and_calibrated_and_their_parent_says_which_they_are(recorded: Any) -> None:
    going = trial(recorded, 1.0)
    for seed in range(3):
        for side in going.sessions:
            going.one(going.spec(side, seed))
            recorded.client.set_tag(recorded.children(going.sessions[side])[-1], "canary.tier", "smoke")
    store = ("--tracking-uri", recorded.uri)
    assert CliRunner().invoke(canary, ["compare", *going.sessions.values(), *store]).exit_code == 0
    for command in ("calibrate", "compare"):
        words = [command, going.parent, *([going.parent] if command == "compare" else []), *store]
        refused = CliRunner().invoke(canary, words)
        assert (refused.exit_code, len(refused.output.splitlines())) == (2, 1)
        assert f"run {going.parent}: found a comparison of two revisions; expected one session" in refused.output
        assert all(session in refused.output for session in going.sessions.values())


def test_the_first_look_has_two_pairs_at_least() -> None:
    assert [first_pairs(load_policy(tier)) for tier in ("smoke", "perf", "nightly")] == [3, 3, 3]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tier=zzz",), "unknown tier 'zzz'; expected one of facts, nightly, perf, smoke"),
        (
            ("tier=zzz", "--policy", "smoke", "--dry-run"),
            "unknown tier 'zzz'; expected one of facts, nightly, perf, smoke",
        ),
        (("tier=smoke", "tier=zzz"), "unknown tier 'zzz'"),
        (("++gate.alpha_block=0.5",), "is judged by --policy"),
        (("repeats=50",), "found 'repeats=50'; the plan of looks says which runs are made"),
        (("algo=sft", "seed=4"), "found 'seed=4'; the plan of looks says which runs are made"),
        (("gate=perf",), "found 'gate=perf'; a comparison of revisions is judged by --policy NAME|PATH"),
        (("gate.rules.step_time.margin=0.3", "--dry-run"), "is judged by --policy"),
    ],
)
def test_what_the_runs_could_not_use_is_refused_before_git_is_asked(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(canary, ["ab", *words, "--baseline", "no-such-ref", "--candidate", "no-such-ref"])
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert said in result.output
