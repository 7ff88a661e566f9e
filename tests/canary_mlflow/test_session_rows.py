"""A verdict covers every run that the ledger names for a session, as it was then; further tries are seen and cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from mlflow.entities import Metric
from tiny_weights import safetensors

from canary_mlflow.cli import canary
from canary_mlflow.errors import UsageError
from canary_mlflow.launching.projects import begin as begin_run
from canary_mlflow.ledger import table
from canary_mlflow.ledger.chain import Kind
from canary_mlflow.policies import content_of
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.binding import is_same_run, run_digests
from canary_mlflow.registry.guard.origin import comes_from
from canary_mlflow.registry.guard.seal import require_seal, seal_version
from canary_mlflow.registry.judging import assessment
from canary_mlflow.registry.sessions import rows as session_rows
from canary_mlflow.registry.sessions.orders import order, read_sides
from canary_mlflow.registry.sessions.registering import register_version
from canary_mlflow.registry.sessions.rows import Word, append, begin, record_runs
from canary_mlflow.tags import MODEL_SOURCE, PARENT_RUN, SEEDS, SESSION_ID
from canary_mlflow.tracking.reading.database import read_runs_from
from canary_mlflow.tracking.reading.histories import read_runs

pytestmark = pytest.mark.usefixtures("unpublished")


def run(it: Any, *words: str) -> Result:
    return CliRunner().invoke(canary, [*words, "--tracking-uri", it.uri])


def gated(it: Any, version: str) -> Any:
    """What `canary gate` says, as JSON."""
    done = run(it, "gate", it.model, version, "--json")
    assert done.exit_code in (0, 1, 3), done.output
    return json.loads(done.stdout)


def refusal(it: Any, version: str) -> str:
    """The line with which the gate refuses; nothing is recorded."""
    before = len(registry_of(it.client).rows(it.model))
    done = run(it, "gate", it.model, version)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert len(registry_of(it.client).rows(it.model)) == before
    (line,) = done.stderr.splitlines()
    return line


def session_of(it: Any, version: str) -> str:
    return str(it.tags(version)["canary.session_id"])


def blocked(it: Any) -> tuple[str, list[str]]:
    """A version of three good runs and two with NaN, which is blocked, and the ids of these two."""
    session = it.session()
    bad = [it.run(session, seed, slower=1.0, tags={}, nan_at=20, without=()) for seed in (3, 4)]
    version = it.register(session)
    assert gated(it, version)["decision"] == "BLOCK"
    return version, bad


def half_as_slow(it: Any, run_id: str) -> None:
    """Other numbers in place of those that were judged."""
    for key in ("perf/step_time", "perf/step_cpu_time", "perf/step_cost"):
        points = it.client.get_metric_history(run_id, key)
        found = [Metric(key, one.value / 2, 1_900_000_000_000, one.step) for one in points]
        it.client.log_batch(run_id, metrics=found)


def other_session(it: Any) -> str:
    return str(replace(it, model=f"{it.model}-other").session(runs=1))


DAILY = ("deleted", "moved", "other numbers", "another host")
CHANGES: dict[str, tuple[Callable[[Any, str], Any], str]] = {
    "deleted": (lambda it, run_id: it.client.delete_run(run_id), "deleted; row {row} of the ledger names it"),
    "moved": (
        lambda it, run_id: it.client.set_tag(run_id, "mlflow.parentRunId", other_session(it)),
        "its tag mlflow.parentRunId is",
    ),
    "other numbers": (half_as_slow, "its metrics or facts changed since row {row} of the ledger"),
    "another host": (
        lambda it, run_id: it.client.set_tag(run_id, "canary.env.host", "elsewhere"),
        "its metrics or facts changed since row {row} of the ledger",
    ),
    "another fact": (
        lambda it, run_id: it.client.set_tag(run_id, "canary.nan_steps", "0"),
        "its metrics or facts changed since row {row} of the ledger",
    ),
    "another configuration": (
        lambda it, run_id: it.client.log_param(run_id, "why_not", "1"),
        "its metrics or facts changed since row {row} of the ledger",
    ),
}


def untag(it: Any, run_id: str) -> None:
    tags = it.client.get_run(run_id).data.tags
    for key in {"canary.role", "canary.completed"} & tags.keys():
        it.client.delete_tag(run_id, key)


ROLES: dict[str, Callable[[Any, str], Any]] = {
    "another role": lambda it, run_id: it.client.set_tag(run_id, "canary.role", "note"),
    "none": untag,
    "the champion's": lambda it, run_id: [
        it.client.set_tag(run_id, key, value)
        for key, value in (("canary.role", "baseline"), ("canary.baseline_of", "1"))
    ],
}


@pytest.mark.parametrize("change", ROLES)
def test_no_tag_of_a_run_says_whose_it_is(guarded: Any, change: str) -> None:
    """The two that went badly, tagged otherwise before any row names them; and once more after."""
    session = guarded.session()
    bad = [guarded.run(session, seed, slower=1.0, tags={}, nan_at=20, without=()) for seed in (3, 4)]
    for run_id in bad:
        ROLES[change](guarded, run_id)
    version = guarded.register(session)
    for _ in range(2):
        found = gated(guarded, version)
        assert (found["decision"], set(bad) <= set(found["verdict"]["candidate_runs"])) == ("BLOCK", True)
        for run_id in bad:
            ROLES[change](guarded, run_id)
    assert guarded.champion() == "1"


@pytest.mark.parametrize("policy", ["smoke", "with fresh runs"])
def test_runs_that_no_row_ordered_are_not_the_champions(guarded: Any, policy: str, tmp_path: Path) -> None:
    """Who trained slow code trains it three times more, and tags these runs as the champion's made beside."""
    tags = {"canary.role": "baseline", "canary.baseline_of": "1"}
    session = guarded.session(slower=3.0)
    first = guarded.children(session)[0]
    beside = [guarded.run(session, seed, slower=3.0, tags=tags, nan_at=None, without=()) for seed in range(3)]
    guarded.weights(first)
    version = register_version(guarded.client, guarded.model, session, first)
    words = [] if policy == "smoke" else ["--policy", asking_for_fresh(tmp_path)]
    done = run(guarded, "gate", guarded.model, version, "--json", *words)
    verdict = json.loads(done.stdout)["verdict"]
    assert (done.exit_code, verdict["reason_code"]) == (1, "regression"), done.output
    assert not set(beside) & set(verdict["baseline_runs"])
    assert guarded.champion() == "1"


def asking_for_fresh(folder: Path) -> str:
    """A policy as smoke's that asks for fresh runs of the champion."""
    own = content_of("smoke")
    own |= {"name": "fresh", "looks": {**own["looks"], "fresh_baseline": "always"}}
    file = folder / "fresh.yaml"
    file.write_text(json.dumps(own))
    return str(file)


def with_ordered(it: Any, tags: dict[str, str] | None = None) -> tuple[str, list[str]]:
    """A version three times slower than the champion, and the ids of ordered runs as slow beside it."""
    version = it.version(slower=3.0)
    session = session_of(it, version)
    beside = [it.fresh(session, seed, 3.0, tags) for seed in range(3)]
    record_runs(it.client, session, it.model)
    return version, beside


@pytest.mark.parametrize(("policy", "used"), [("smoke", False), ("with fresh runs", True)])
def test_runs_that_were_ordered_are_the_champions_where_the_policy_asks_for_them(
    guarded: Any, policy: str, used: bool, tmp_path: Path
) -> None:
    """On a machine that is three times slower today."""
    version, beside = with_ordered(guarded)
    words = [] if policy == "smoke" else ["--policy", asking_for_fresh(tmp_path)]
    done = run(guarded, "gate", guarded.model, version, "--json", *words)
    found = json.loads(done.stdout)["verdict"]
    assert (set(beside) <= set(found["baseline_runs"]), done.exit_code) == (used, 0 if used else 1), done.output


def test_an_ordered_run_of_other_code_is_not_the_champions(guarded: Any, tmp_path: Path) -> None:
    version, beside = with_ordered(guarded, {"canary.env.torch": "2.12.0"})
    done = run(guarded, "gate", guarded.model, version, "--json", "--policy", asking_for_fresh(tmp_path))
    found = json.loads(done.stdout)["verdict"]
    assert (done.exit_code, set(beside) & set(found["baseline_runs"])) == (1, set()), done.output
    assert f"not counted: run {beside[0]}, ordered as one of version 1: its packages (torch)" in " ".join(
        found["notes"]
    )


def test_a_run_that_was_ordered_is_missed(guarded: Any, tmp_path: Path) -> None:
    """One that speaks for the champion, moved away before a row names it."""
    version, _ = with_ordered(guarded)
    session = session_of(guarded, version)
    last = guarded.fresh(session, 3)
    guarded.client.set_tag(last, PARENT_RUN, other_session(guarded))
    done = run(guarded, "gate", guarded.model, version, "--policy", asking_for_fresh(tmp_path))
    assert (done.exit_code, f"run {last}: it moved into or out of session {session}" in done.stderr) == (2, True)


def test_an_order_comes_before_its_run(guarded: Any) -> None:
    session = guarded.session(slower=3.0)
    made = guarded.run(session, 3, slower=3.0, tags={}, nan_at=None, without=())
    elsewhere = begin_run(guarded.client, guarded.session(), name="elsewhere", role="baseline", seed=3)
    for run_id in (made, elsewhere):
        with pytest.raises(UsageError, match="found one that has begun, or is in another session"):
            order(guarded.client, session, guarded.model, run_id)
    guarded.client.set_terminated(elsewhere)
    assert not any(row.word == Word.ORDERED for row in registry_of(guarded.client).session_rows(session))


@pytest.mark.parametrize(
    "change",
    [name if name in DAILY else pytest.param(name, marks=pytest.mark.full) for name in CHANGES],
)
def test_what_was_judged_is_judged_again_as_it_was_or_not_at_all(guarded: Any, change: str) -> None:
    version, (run_id, _) = blocked(guarded)
    act, says = CHANGES[change]
    act(guarded, run_id)
    said = refusal(guarded, version)
    row = next(one for one in registry_of(guarded.client).session_rows(session_of(guarded, version)))
    assert f"version {version} of {guarded.model!r}: run {run_id} (seed 3): " in said
    assert says.format(row=row.seq) in said
    assert guarded.champion() == "1"


def test_rows_from_before_a_digest_had_all_its_parts_hold() -> None:
    first, second, now = "a" * 64, f"{'a' * 64}.{'b' * 64}", f"{'a' * 64}.{'b' * 64}.{'d' * 64}"
    for before in (first, second, now):
        assert is_same_run(before, now)
        assert not is_same_run(before, f"{'c' * 64}.{'b' * 64}.{'d' * 64}")
    assert not is_same_run(second, f"{'a' * 64}.{'c' * 64}.{'d' * 64}")
    assert not is_same_run(now, f"{second}.{'e' * 64}")
    assert not is_same_run(now, second)


def hide(it: Any, run_id: str) -> str:
    home = str(it.client.get_run(run_id).data.tags[PARENT_RUN])
    it.client.set_tag(run_id, PARENT_RUN, other_session(it))
    return home


@pytest.mark.parametrize("side", ["candidate", "champion"])
def test_a_run_that_is_hidden_while_its_side_is_read_is_missed(
    guarded: Any, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """Somebody else's request, between the reading of both sides and the look at their rows."""
    version, (bad, _) = blocked(guarded)
    hidden = bad if side == "candidate" else guarded.children(session_of(guarded, "1"))[0]

    def read(*words: Any) -> Any:
        home = hide(guarded, hidden)
        found = read_sides(*words)
        guarded.client.set_tag(hidden, PARENT_RUN, home)
        return found

    monkeypatch.setattr(assessment, "read_sides", read)
    assert f"run {hidden} (seed " in (said := refusal(guarded, version))
    assert "it moved into or out of session" in said
    assert guarded.champion() == "1"


def test_what_changes_before_the_end_has_its_row_is_not_judged_as_it_was(
    guarded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the row would say what the next candidate is compared with, and the verdict something else."""
    session = guarded.session()
    run_id = guarded.children(session)[0]
    guarded.weights(run_id)
    version = version_of(guarded, session, run_id, f"{guarded.client.get_run(run_id).info.artifact_uri}/model")

    def seal(*words: Any) -> Any:
        half_as_slow(guarded, run_id)
        return require_seal(*words)

    monkeypatch.setattr(assessment, "require_seal", seal)
    done = run(guarded, "gate", guarded.model, version)
    assert (done.exit_code, "changed while it was judged (row " in done.stderr) == (2, True), done.output
    assert guarded.champion() == "1"


def test_runs_that_come_after_the_end_are_no_fresh_ones_of_the_champion(guarded: Any) -> None:
    """As slow as the candidate, under it, with the champion's tag."""
    version = guarded.version(slower=2.0)
    assert gated(guarded, version)["decision"] == "BLOCK"
    beside = {"canary.role": "note", "canary.baseline_of": "1"}
    for seed in range(3):
        guarded.run(session_of(guarded, version), seed, slower=2.0, tags=beside, nan_at=None, without=())
    assert "no row of the ledger names it" in refusal(guarded, version)
    assert guarded.champion() == "1"


def test_a_run_is_the_same_however_it_is_read(guarded: Any) -> None:
    """By the judge through MLflow, and by a later promotion and an auditor from the tables."""
    run_id = guarded.children(guarded.session(runs=1))[0]
    guarded.client.log_param(run_id, "cfg/train.lr", "0.1")
    guarded.client.log_param(run_id, "own", "2")
    through, straight = (
        read(run_id)
        for read in (lambda one: read_runs(guarded.client, [one]), lambda one: read_runs_from(guarded.uri, [one]))
    )
    assert through[0].configuration == {"train.lr": "0.1", "own": "2"}
    assert run_digests(through) == run_digests(straight)


def test_a_run_that_is_brought_back_is_judged_again(guarded: Any) -> None:
    version, (run_id, _) = blocked(guarded)
    guarded.client.delete_run(run_id)
    assert f"mlflow runs restore --run-id {run_id}" in refusal(guarded, version)
    guarded.client.restore_run(run_id)
    assert gated(guarded, version)["decision"] == "BLOCK"


def test_runs_deleted_before_anybody_recorded_the_end_are_missed_too(guarded: Any) -> None:
    session = guarded.session()
    bad = guarded.run(session, 3, slower=1.0, tags={}, nan_at=20, without=())
    guarded.client.delete_run(bad)
    assert f"run {bad} (seed 3): deleted" in refusal(guarded, guarded.register(session))


def test_a_run_that_no_row_names_is_not_judged_until_one_does(guarded: Any) -> None:
    version = guarded.version()
    session = session_of(guarded, version)
    added = guarded.run(session, 3, slower=1.0, tags={}, nan_at=None, without=())
    said = refusal(guarded, version)
    assert f"run {added} (seed 3): it is in session {session} and no row of the ledger names it" in said
    assert said.endswith(f"canary session add {session}")
    done = run(guarded, "session", "add", session, guarded.model)
    assert done.exit_code == 0, done.output
    life = registry_of(guarded.client).session_rows(session)
    assert [row.word for row in life] == [Word.ENDED, Word.ADDED]
    assert list(life[1].facts["runs"]) == [added]
    assert added in gated(guarded, version)["verdict"]["candidate_runs"]


@pytest.mark.full
def test_a_run_of_another_session_speaks_for_that_one_only(guarded: Any) -> None:
    bad, good = guarded.version(slower=2.0), guarded.version()
    session, other = session_of(guarded, bad), session_of(guarded, good)
    lent = guarded.children(other)[0]
    guarded.client.set_tag(lent, "mlflow.parentRunId", session)
    assert run(guarded, "session", "add", session, guarded.model).exit_code == 0
    assert f"of the ledger has it in session {other}" in refusal(guarded, bad)
    assert f"its tag mlflow.parentRunId is {session!r}" in refusal(guarded, good)


def test_one_good_run_of_a_session_is_not_a_version_of_its_own(guarded: Any) -> None:
    session = session_of(guarded, guarded.version(slower=2.0))
    run_id = guarded.children(session)[0]
    source = f"{guarded.client.get_run(run_id).info.artifact_uri}/model"
    alone = guarded.client.create_model_version(guarded.model, source, run_id=run_id)
    assert f"of the ledger has it in session {session}" in refusal(guarded, str(alone.version))


def test_the_champions_side_cannot_be_made_worse(guarded: Any) -> None:
    first = guarded.version()
    assert gated(guarded, first)["promoted"]
    guarded.run(session_of(guarded, first), 7, slower=3.0, tags={}, nan_at=None, without=())
    said = refusal(guarded, guarded.version(slower=1.7))
    assert f"version {first} of {guarded.model!r}: run " in said
    assert "no row of the ledger names it" in said


def test_a_champion_made_by_hand_cannot_be_made_worse_either(guarded: Any) -> None:
    """Though no row of its session names its runs: somebody registered it himself."""
    session = guarded.session()
    run_id = guarded.children(session)[0]
    guarded.weights(run_id)
    version = version_of(guarded, session, run_id, f"{guarded.client.get_run(run_id).info.artifact_uri}/model")
    assert run(guarded, "bless", guarded.model, version, "--reason", "the best there is").exit_code == 0
    guarded.client.log_metric(run_id, "perf/step_cost", 99.0, step=20)
    said = refusal(guarded, guarded.version(slower=1.7))
    assert f"version {version} of {guarded.model!r}: run {run_id}: its metrics or facts changed since row" in said


def test_the_anchors_side_cannot_be_made_worse(guarded: Any) -> None:
    first = guarded.version()
    assert gated(guarded, first)["promoted"]
    words = ("override", guarded.model, first, "--alias", "anchor", "--reason", "where we began")
    assert run(guarded, *words).exit_code == 0
    assert gated(guarded, guarded.version())["promoted"]
    gone = guarded.children(session_of(guarded, first))[0]
    guarded.client.delete_run(gone)
    said = refusal(guarded, guarded.version())
    assert f"version {first} of {guarded.model!r}: run {gone} (seed " in said
    assert "deleted; row " in said


def test_an_act_by_hand_says_which_evidence_is_gone(guarded: Any) -> None:
    version, (run_id, _) = blocked(guarded)
    guarded.client.delete_run(run_id)
    done = run(guarded, "override", guarded.model, version, "--reason", "known")
    assert done.exit_code == 0, done.output
    said = f"version {version} of {guarded.model!r}: run {run_id} (seed 3): deleted; row "
    assert f"Its evidence does not hold, and is in the row as it is: {said}" in done.stdout
    row = registry_of(guarded.client).rows(guarded.model)[-1]
    assert row.facts["evidence"].startswith(said)
    assert "Its evidence does not hold: " in guarded.description(version)
    whole = run(guarded, "override", guarded.model, "1", "--reason", "back")
    assert (whole.exit_code, "Its evidence" in whole.output) == (0, False)


def begun(it: Any, seeds: str = "0 1 2", torch: str = "2.13.0", **how: Any) -> str:
    """A session as `canary run` begins it, which has its runs and no end yet."""
    session = str(it.session(tags={SEEDS: seeds, "canary.env.torch": torch}, **how))
    begin(it.client, session, it.model)
    return session


def test_the_rows_tell_a_sessions_life(guarded: Any) -> None:
    session = begun(guarded)
    record_runs(guarded.client, session, guarded.model)
    record_runs(guarded.client, session, guarded.model)  # nothing new
    first, last = registry_of(guarded.client).session_rows(session)
    assert (first.kind, first.word, first.facts["seeds"]) == (Kind.SESSION, Word.BEGUN, ["0", "1", "2"])
    assert (last.word, sorted(last.facts["runs"])) == (Word.ENDED, sorted(guarded.children(session)))
    assert {one["role"] for one in last.facts["runs"].values()} == {"run"}
    log = run(guarded, "audit", "log", guarded.model).stdout
    assert f"session   begun        {guarded.model} session {session}" in log
    assert f"{guarded.model} session {session}, 3 runs" in log


def test_a_planned_seed_without_a_run_is_missed(guarded: Any) -> None:
    session = begun(guarded, seeds="0 1 2 3")
    said = refusal(guarded, guarded.register(session))
    assert f"seed 3 was planned when session {session} began" in said


def test_a_session_without_an_end_stands_beside_later_verdicts(guarded: Any) -> None:
    lost = begun(guarded, slower=2.0)
    verdict = gated(guarded, guarded.version())["verdict"]
    assert f"1 session has begun and not ended: {lost[:8]} on 20" in verdict["notes"][0]
    assert verdict["attempt"] == 1  # shown, and not counted: nobody knows what killed it


def test_a_session_that_was_stopped_is_shown_and_no_try(guarded: Any) -> None:
    stopped = guarded.session(slower=2.0, tags={"canary.failure": "interrupted", "canary.completed": "false"})
    record_runs(guarded.client, stopped, guarded.model)
    verdict = gated(guarded, guarded.version())["verdict"]
    assert f"1 session of this code was stopped by hand: {stopped[:8]} on 20" in verdict["notes"][0]
    assert verdict["attempt"] == 1


def test_a_third_try_is_called_so_and_has_less_to_spend(guarded: Any) -> None:
    """The first two: one that was judged, one that was thrown away."""
    first = guarded.version(slower=2.0)
    assert gated(guarded, first)["decision"] == "BLOCK"
    thrown = begun(guarded, slower=2.0)
    record_runs(guarded.client, thrown, guarded.model)
    other = begun(guarded, slower=2.0, torch="2.99.0")  # of other packages: not this code
    record_runs(guarded.client, other, guarded.model)
    found = gated(guarded, guarded.version())
    assert found["verdict"]["attempt"] == 3
    assert found["verdict"]["policy"]["alpha_pass"] == pytest.approx(0.05 / 6)
    assert found["verdict"]["policy"]["alpha_block"] == 0.01
    note = found["verdict"]["notes"][0]
    assert note.startswith("third try of this code against version 1, before it: ")
    assert (
        f"session {session_of(guarded, first)[:8]} (version {first}: BLOCK), session {thrown[:8]} (not judged)" in note
    )
    assert "PASS at 0.83 % instead of 5 %" in note
    assert "third try of this code" in guarded.description(found["version"])


def test_sessions_for_another_model_are_no_tries(guarded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither somebody else's, who could spend the model's level with them, nor one's own: they try another model."""
    gated(guarded, guarded.version(slower=2.0))
    other, own = (guarded.session(runs=1) for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(session_rows, "current_actor", lambda: "mallory")
        record_runs(guarded.client, other, f"{guarded.model}-other")
    record_runs(guarded.client, own, f"{guarded.model}-scratch")
    found = gated(guarded, guarded.version())["verdict"]
    assert found["attempt"] == 2
    assert not [session for session in (other, own) if session[:8] in found["notes"][0]]


CODE = "canary.env.git_commit"
EDITED = {CODE: "a" * 40, "canary.env.git_dirty": "true"}
CODES = {
    "no git": ({}, {}, 2),
    "an edited script outside of git": ({"canary.env.script": "train.py 1"}, {"canary.env.script": "train.py 2"}, 2),
    "an edit": ({CODE: "a" * 40, "canary.env.git_dirty": "false"}, {**EDITED, "canary.env.git_diff": "1"}, 2),
    "another edit": ({**EDITED, "canary.env.git_diff": "1"}, {**EDITED, "canary.env.git_diff": "2"}, 2),
    "git is gone": ({CODE: "a" * 40}, {CODE: "unknown", "canary.env.git_dirty": "unknown"}, 2),
    "another commit": ({CODE: "a" * 40}, {CODE: "b" * 40}, 1),
}


@pytest.mark.parametrize(
    "code", [name if "edit" in name else pytest.param(name, marks=pytest.mark.full) for name in CODES]
)
def test_edits_and_unknown_code_begin_no_new_count(guarded: Any, code: str) -> None:
    before, now, attempt = CODES[code]
    gated(guarded, guarded.version(slower=2.0, tags=before))
    assert gated(guarded, guarded.version(tags=now))["verdict"]["attempt"] == attempt


def test_a_try_that_would_pass_as_the_first_says_so_before_all_else(guarded: Any) -> None:
    for _ in range(8):
        record_runs(guarded.client, begun(guarded), guarded.model)
    found, unclear = gated(guarded, guarded.version(slower=1.12)), gated(guarded, guarded.version(slower=1.19))
    assert (found["decision"], unclear["decision"]) == ("INCONCLUSIVE", "INCONCLUSIVE")
    assert found["card"]["reason"].startswith("As a first try it would pass, but it is the ninth. Step cost ")
    assert unclear["card"]["reason"].startswith("Step cost ")


@pytest.mark.full
def test_the_terminal_says_which_try_it_is(guarded: Any) -> None:
    gated(guarded, guarded.version(slower=2.0))
    assert "second try of this code" in " ".join(run(guarded, "gate", guarded.model, guarded.version()).stdout.split())


@pytest.mark.full
def test_a_new_champion_begins_a_new_count(guarded: Any) -> None:
    gated(guarded, guarded.version(slower=2.0))
    assert gated(guarded, guarded.version())["promoted"]
    assert gated(guarded, guarded.version())["verdict"]["attempt"] == 1


def test_the_same_evidence_judged_again_is_no_other_try_and_more_of_it_is(guarded: Any) -> None:
    version = guarded.version(slower=1.2)
    assert [gated(guarded, version)["verdict"]["attempt"] for _ in range(2)] == [1, 1]
    session = session_of(guarded, version)
    guarded.run(session, 3, slower=1.2, tags={}, nan_at=None, without=())
    assert run(guarded, "session", "add", session, guarded.model).exit_code == 0
    assert gated(guarded, version)["verdict"]["attempt"] == 2


def test_what_is_delivered_after_the_end_counts_until_it_was_judged(guarded: Any) -> None:
    session = guarded.session()
    late = guarded.children(session)[0]
    guarded.client.delete_tag(late, "canary.rows_lost")
    version = guarded.register(session)
    guarded.client.log_metric(late, "quality/eval_loss", 0.449, step=40, timestamp=1_900_000_000_000)
    assert gated(guarded, version)["decision"] == "PASS"
    guarded.client.log_metric(late, "quality/eval_loss", 0.4, step=40, timestamp=1_900_000_000_001)
    assert f"run {late} (seed " in (said := refusal(guarded, guarded.version(slower=2.0)))
    assert "its metrics or facts changed since row" in said


def test_a_row_that_a_stranger_signed_is_none(guarded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = guarded.version()
    with monkeypatch.context() as patch:
        patch.setenv("CANARY_KEYS", str(tmp_path / "keys"))
        patch.setattr("canary_mlflow.registry.guard.store.let_sign", lambda connection, *_: table.last(connection))
        added = guarded.run(session_of(guarded, version), 3, slower=1.0, tags={}, nan_at=None, without=())
        named = {"runs": {added: dict[str, Any]()}}
        append(registry_of(guarded.client), session_of(guarded, version), guarded.model, Word.ADDED, named)
    assert "it is signed with key" in refusal(guarded, version)


def test_weights_that_changed_between_the_end_and_the_seal_are_not_sealed(guarded: Any) -> None:
    session = guarded.session()
    run_id = guarded.children(session)[0]
    guarded.weights(run_id)
    record_runs(guarded.client, session, guarded.model)
    guarded.weights(run_id, safetensors(), "other.safetensors")
    with pytest.raises(UsageError, match=r"says that session \w+ ended with 1 files"):
        register_version(guarded.client, guarded.model, session, run_id)


def test_runs_added_to_a_champions_session_are_not_what_the_next_is_compared_with(guarded: Any) -> None:
    first = guarded.version()
    assert gated(guarded, first)["promoted"]
    session = session_of(guarded, first)
    slow = guarded.run(session, 7, slower=1.3, tags={}, nan_at=None, without=())
    said = run(guarded, "session", "add", session, guarded.model)
    assert said.exit_code == 2
    assert f"session {session}: version {first} of {guarded.model!r} became champion by it in row " in said.stderr
    assert f"found run {slow}, which no row names" in said.stderr
    assert "no row of the ledger names it" in refusal(guarded, guarded.version(slower=1.2))
    guarded.client.delete_tag(slow, PARENT_RUN)
    assert gated(guarded, guarded.version(slower=1.5))["decision"] == "BLOCK"


OTHERS = safetensors(weight=np.full(4, 7, np.float32))


def files_in(it: Any, run_id: str) -> str:
    """Weights that no run of the session trained, as a run's own."""
    it.weights(run_id, OTHERS)
    return f"{it.client.get_run(run_id).info.artifact_uri}/model"


def named_by_tag(it: Any, run_id: str) -> str:
    place = files_in(it, it.children(it.session(slower=2.0, runs=1))[0])
    it.client.set_tag(run_id, MODEL_SOURCE, place)
    return place


LATE = {"its folder": files_in, "a place that its tag names": named_by_tag}


def version_of(it: Any, session: str, run_id: str, place: str, *, tagged: bool = True) -> str:
    """A version that somebody registers himself, with the session as its evidence."""
    tags = {SESSION_ID: session} if tagged else {}
    version = str(it.client.create_model_version(it.model, place, run_id=run_id, tags=tags).version)
    seal_version(it.client, it.model, version)
    return version


@pytest.mark.parametrize("way", LATE)
def test_weights_that_turn_up_in_a_run_after_its_session_has_ended_are_not_sealed(guarded: Any, way: str) -> None:
    session = guarded.session()
    first, second, _ = guarded.children(session)
    guarded.weights(first)
    record_runs(guarded.client, session, guarded.model)
    with pytest.raises(UsageError, match=f"says that run {second} had none there"):
        version_of(guarded, session, second, LATE[way](guarded, second))


def test_weights_that_a_run_vouched_for_when_its_session_ended_are_sealed(guarded: Any) -> None:
    session = guarded.session()
    run_id = guarded.children(session)[0]
    place = named_by_tag(guarded, run_id)
    record_runs(guarded.client, session, guarded.model)
    assert gated(guarded, version_of(guarded, session, run_id, place))["promoted"]


@pytest.mark.parametrize("below", ["", "checkpoint-10"])
def test_weights_swapped_in_the_place_that_a_run_vouched_for_are_not_sealed(
    guarded: Any, tmp_path: Path, below: str
) -> None:
    """Between the session's end, whose row has their digest, and the seal. Put back, they are sealed."""
    session, folder = guarded.session(), tmp_path / "out"
    (folder / "checkpoint-10").mkdir(parents=True)
    for file in (folder / "model.safetensors", folder / "checkpoint-10" / "model.safetensors"):
        file.write_bytes(safetensors())
    run_id, place = guarded.children(session)[0], folder / below
    guarded.client.set_tag(run_id, MODEL_SOURCE, str(folder))
    record_runs(guarded.client, session, guarded.model)
    (place / "model.safetensors").write_bytes(OTHERS)
    with pytest.raises(UsageError, match=f"session {session} ended with .* at {folder}; expected those"):
        version_of(guarded, session, run_id, str(place))
    (place / "model.safetensors").write_bytes(safetensors())
    assert gated(guarded, version_of(guarded, session, run_id, str(place)))["promoted"]


def test_a_place_that_could_not_be_read_at_the_end_holds_nothing_to_seal(guarded: Any, tmp_path: Path) -> None:
    session, folder = guarded.session(), tmp_path / "later"
    run_id = guarded.children(session)[0]
    guarded.client.set_tag(run_id, MODEL_SOURCE, str(folder))
    record_runs(guarded.client, session, guarded.model)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(OTHERS)
    with pytest.raises(UsageError, match=r"ended with none at .*, which could not be read"):
        version_of(guarded, session, run_id, str(folder))


@pytest.mark.parametrize("tagged", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_session_is_sealed_with_one_set_of_weights(guarded: Any, tagged: bool) -> None:
    """Its own folder is its script's word: said once."""
    session = guarded.session()
    guarded.weights(session)
    asked = {"recorded": {}, "repeated": {"answer": 0.0}, "different": []}
    first = register_version(guarded.client, guarded.model, session, session, evaluation=asked)
    guarded.weights(session, OTHERS)
    with pytest.raises(UsageError, match=f"as those of session {session}; expected the same"):
        version_of(guarded, session, session, files_in(guarded, session), tagged=tagged)
    assert "model.safetensors changed since it was sealed" in refusal(guarded, first)


def test_a_session_whose_runs_save_their_weights_has_none_of_its_own(guarded: Any) -> None:
    session = begun(guarded)
    guarded.weights(guarded.children(session)[0])
    record_runs(guarded.client, session, guarded.model)
    with pytest.raises(UsageError, match="whose runs save their own"):
        version_of(guarded, session, session, files_in(guarded, session))


def test_what_was_sealed_while_its_run_trained_must_be_what_that_saved(guarded: Any) -> None:
    session = begun(guarded)
    run_id = guarded.children(session)[0]
    early = version_of(guarded, session, run_id, files_in(guarded, run_id))
    guarded.weights(run_id)
    record_runs(guarded.client, session, guarded.model)
    guarded.weights(run_id, OTHERS)
    assert f"says that session {session} ended with" in refusal(guarded, early)


def test_a_version_without_files_does_not_stand_for_a_run_that_saved_some(guarded: Any) -> None:
    session = guarded.session()
    run_id = guarded.children(session)[0]
    guarded.weights(run_id)
    record_runs(guarded.client, session, guarded.model)
    nothing = f"{guarded.client.get_run(run_id).info.artifact_uri}/nothing"
    with pytest.raises(UsageError, match=f"its files are 0 files, .* session {session} ended with 1 files"):
        version_of(guarded, session, run_id, nothing)


def test_a_copy_comes_from_where_its_original_does_whatever_its_model_is_called(guarded: Any) -> None:
    """MLflow's ids of logged models begin with `m-`; a model may be called so, too."""
    version, other = guarded.version(), guarded.version()
    run_id, stranger = (guarded.client.get_model_version(guarded.model, one).run_id for one in (version, other))
    place = f"models:/{guarded.model}/{version}"
    for name in (f"m-{guarded.seed}", f"m-{guarded.seed}-again"):
        guarded.client.create_registered_model(name)
        guarded.client.create_model_version(name, place, run_id=run_id)
        place = f"models:/{name}/1"
    assert comes_from(guarded.client, place, run_id)
    assert not comes_from(guarded.client, place, stranger)
    assert not comes_from(guarded.client, f"models:/{guarded.model}@champion", run_id)


@pytest.mark.timeout(60)
def test_copies_of_each_other_come_from_nowhere(guarded: Any) -> None:
    """A model that was deleted and made anew as a copy of its own copy: a server must not follow that for ever."""
    version = guarded.version()
    run_id = guarded.client.get_model_version(guarded.model, version).run_id
    one, other = f"{guarded.model}-one", f"{guarded.model}-other"
    for name, source in ((one, f"models:/{guarded.model}/{version}"), (other, f"models:/{one}/1")):
        guarded.client.create_registered_model(name)
        guarded.client.create_model_version(name, source, run_id=run_id)
    guarded.client.delete_registered_model(one)
    guarded.client.create_registered_model(one)
    guarded.client.create_model_version(one, f"models:/{other}/1", run_id=run_id)
    assert not comes_from(guarded.client, f"models:/{one}/1", run_id)
