"""By which policy a model is judged, in the database itself: set, shown, used, changed, audited; and two operators."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from canary_mlflow.cli import canary
from canary_mlflow.errors import Refused, UsageError
from canary_mlflow.ledger import install, table
from canary_mlflow.ledger.chain import Kind, Record, signed
from canary_mlflow.ledger.keys import key_folder, load_signer
from canary_mlflow.policies import content_of, load_policy
from canary_mlflow.registry.acts.act import Request
from canary_mlflow.registry.acts.by_hand import bless, override
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.judging.assessment import Options, assess
from canary_mlflow.registry.judging.gatekeeper import enact, gate
from canary_mlflow.registry.policies.asked import set_policy
from canary_mlflow.registry.policies.audited import policy_damages
from canary_mlflow.registry.policies.in_force import policy_record

pytestmark = pytest.mark.usefixtures("unpublished")

DATA = Path(__file__).resolve().parents[1] / "data"


def run(uri: str, *words: str) -> Result:
    return CliRunner().invoke(canary, [*words, "--tracking-uri", uri])


def own_policy(folder: Path, name: str, /, **keys: Any) -> str:
    """A file over smoke."""
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"base": "smoke", **keys}))
    return str(file)


def last_row(recorded: Any) -> Any:
    return registry_of(recorded.client).rows(recorded.model)[-1]


def set_here(recorded: Any, pattern: str, policy: str, who: str = "ann") -> int:
    return int(set_policy(recorded.client, pattern, content_of(policy), "for the test", who).seq)


def forge(recorded: Any, record: Record, folder: Path) -> Any:
    """A row by whoever can write the database, signed with the key in `folder`."""
    with registry_of(recorded.client).store.engine.begin() as connection:
        row = signed(record, table.last(connection), load_signer(folder))
        table.append(connection, row)
    return row


@pytest.fixture
def two(guarded: Any, tmp_path: Path) -> Any:
    """A model whose policy asks for two people, with a champion and, as version 2, a BLOCK."""
    set_here(guarded, guarded.model, own_policy(tmp_path, "careful", override={"operators": 2}))
    gate(guarded.client, guarded.model, guarded.version(slower=1.9), load_policy("smoke"))
    return guarded


def test_a_policy_is_set_shown_and_used(guarded: Any, tmp_path: Path) -> None:
    house = own_policy(tmp_path, "house", rules={"step_cost": {"margin": 2.0}})
    set_here(guarded, f"{guarded.model[:-3]}*", "perf")
    done = run(guarded.uri, "policy", "set", guarded.model, house, "--reason", "slower is fine here")
    assert done.exit_code == 0, done.output
    assert f"Models like {guarded.model} are judged by policy house from row" in done.output
    shown = run(guarded.uri, "policy", "show", guarded.model).output
    assert shown.startswith("house  (row")
    assert "slower is fine here" in shown
    assert yaml.safe_load(run(guarded.uri, "policy", "show", guarded.model, "--full").output) == content_of(house)
    told = [one.split() for one in run(guarded.uri, "audit", "log", guarded.model).output.splitlines()]
    assert [words[3] for words in told if words[2] == "policy"] == ["perf", "house"]
    version = guarded.version(slower=1.9)
    judged = run(guarded.uri, "gate", guarded.model, version)
    assert judged.exit_code == 0, judged.output
    said = last_row(guarded).facts["policy"]
    assert (said["name"], said["source"], said["file"]) == ("house", "row", "")
    assert list(policy_damages(registry_of(guarded.client).rows(everywhere=True))) == []


def test_the_most_specific_pattern_counts_and_the_newest_of_equals(recorded: Any) -> None:
    from canary_mlflow.registry.policies.in_force import in_force_row

    signer, rows = load_signer(key_folder()), []
    for pattern in ("*", "team-*", "team-a?", "team-a*", "team-b1", "team-?b*"):
        record = policy_record(pattern, content_of("smoke"), "r", "ann")
        rows.append(signed(record, rows[-1] if rows else None, signer))
    expected = {"x": 1, "team-c": 2, "team-a1": 4, "team-b1": 5, "team-xb": 6, "Team-a": 1}
    found = {model: in_force_row(rows, model) for model in expected}
    assert {model: row and row.seq for model, row in found.items()} == expected
    assert in_force_row(rows[1:], "x") is None


@pytest.mark.parametrize(
    ("pattern", "policy", "reason", "says"),
    [
        ("m", "nowhere", "r", "policy 'nowhere' not found"),
        ("m", "smoke", " ", "--reason: found an empty text"),
        (" ", "smoke", "r", "expected 1 to 256 characters"),
        ("m", "SMOKE-WITH-OTHER-KEYS", "r", "smoke is a shipped policy with other keys"),
    ],
)
def test_what_cannot_be_meant_sets_nothing(
    recorded: Any, tmp_path: Path, pattern: str, policy: str, reason: str, says: str
) -> None:
    if policy == "SMOKE-WITH-OTHER-KEYS":
        policy = own_policy(tmp_path, "other", name="smoke", alpha_pass=0.2)
    before = len(registry_of(recorded.client).policy_rows(None))
    refused = run(recorded.uri, "policy", "set", pattern, policy, "--reason", reason)
    assert (refused.exit_code, says in refused.output, refused.output.count("\n")) == (2, True, 1), refused.output
    assert len(registry_of(recorded.client).policy_rows(None)) == before


def test_a_file_of_ones_own_is_named_in_the_row_and_a_change_of_it_beside_the_verdict(
    recorded: Any, tmp_path: Path
) -> None:
    house = own_policy(tmp_path, "house", rules={"step_cost": {"margin": 0.1}})
    assert run(recorded.uri, "gate", recorded.model, recorded.version(), "--policy", house).exit_code == 0
    assert run(recorded.uri, "gate", recorded.model, recorded.version(), "--policy", house).exit_code == 0
    said = last_row(recorded).facts["policy"]
    assert (said["source"], said["file"], said["row"]) == ("file", house, None)
    own_policy(tmp_path, "house", rules={"step_cost": {"margin": 0.5}})
    changed = run(recorded.uri, "gate", recorded.model, recorded.version(), "--policy", house)
    # A whole run's limit is never tighter than that of its steps.
    note = "policy changed since version 2 was judged: margin of run_cost 20 % → 50 %, margin of step_cost 10 % → 50 %"
    assert note in " ".join(changed.output.split())
    assert note in recorded.description("3")
    assert last_row(recorded).facts["policy"]["digest"] != said["digest"]
    again = run(recorded.uri, "gate", recorded.model, recorded.version(), "--policy", house)
    assert "policy changed" not in again.output


def test_a_set_policy_judges_whatever_else_is_asked_for(guarded: Any, tmp_path: Path) -> None:
    lax = own_policy(tmp_path, "lax", rules={"step_cost": {"margin": 2.0}})
    row = set_here(guarded, guarded.model, "smoke")
    version = guarded.version(slower=1.9)
    refused = run(guarded.uri, "gate", guarded.model, version, "--policy", lax)
    assert (refused.exit_code, refused.output.count("\n")) == (2, 1)
    assert f"is judged by policy smoke (row {row} of the ledger); expected no other" in refused.output
    decision = gate(guarded.client, guarded.model, version, load_policy(lax))  # as a session does with its settings
    assert decision.word == "BLOCK"
    note = decision.verdict.notes[0]
    assert note.startswith(f"judged by policy smoke (row {row} of the ledger), not by the lax that was given: ")
    assert "margin of step_cost 200 % → 20 %" in note


def test_a_later_candidate_does_not_choose_the_tier(recorded: Any) -> None:
    assert run(recorded.uri, "gate", recorded.model, recorded.version()).exit_code == 0
    recorded.version(slower=1.9, tags={"canary.tier": "nightly"})
    judged = run(recorded.uri, "gate", recorded.model, "2", "--json")
    assert json.loads(judged.stdout)["verdict"]["policy"]["name"] == "smoke"
    assert judged.exit_code == 1


@pytest.mark.parametrize(
    "tier",
    [
        pytest.param("", marks=pytest.mark.full),
        pytest.param("lax.yaml", marks=pytest.mark.full),
        "../../conf/gate/smoke",
    ],
)
def test_a_first_version_names_a_tier_and_no_file(recorded: Any, tmp_path: Path, tier: str) -> None:
    tier = str(tmp_path / tier) if tier.endswith(".yaml") else tier
    (tmp_path / "lax.yaml").write_text("secret: 1\nname: [unclosed\n")
    version = recorded.version(tags={"canary.tier": tier})
    refused = run(recorded.uri, "gate", recorded.model, version)
    assert refused.exit_code == 2
    assert "names no tier; expected one of facts, files, nightly, perf, smoke, or a policy" in refused.output
    assert "secret" not in refused.output
    assert "unclosed" not in refused.output
    set_here(recorded, recorded.model, "smoke")
    assert run(recorded.uri, "gate", recorded.model, version).exit_code == 0


def test_a_policy_without_the_key_chooses_nothing(guarded: Any, tmp_path: Path) -> None:
    content = content_of(own_policy(tmp_path, "lax", rules={"step_cost": {"margin": 2.0}}))
    record = policy_record(guarded.model, content, "r", "eve")
    row = forge(guarded, record, tmp_path / "forger")
    try:
        refused = run(guarded.uri, "gate", guarded.model, guarded.version(slower=1.9))
        assert (refused.exit_code, f"row {row.seq} of the ledger does not hold" in refused.output) == (2, True)
        assert f"row {row.seq}: it is signed with key" in run(guarded.uri, "audit", "verify").output
    finally:
        cut(guarded, row.seq)


def cut(recorded: Any, seq: int) -> None:
    """Take away the rows from there on, as the file's owner can; the other tests of this store go on without."""
    with sqlite3.connect(recorded.uri.removeprefix("sqlite:///")) as base:
        text = base.execute("SELECT sql FROM sqlite_master WHERE name = 'canary_ledger_delete'").fetchone()[0]
        base.execute("DROP TRIGGER canary_ledger_delete")
        base.execute("DELETE FROM canary_ledger WHERE seq >= ?", (seq,))
        base.execute(text)


def verdict_row(recorded: Any, **policy: Any) -> Record:
    """The last verdict once more, with another policy in it; it moves nothing."""
    row = next(row for row in reversed(registry_of(recorded.client).rows(recorded.model)) if row.kind == Kind.VERDICT)
    facts = {**row.facts, "policy": {**row.facts["policy"], **policy}}
    return Record(
        kind=Kind.VERDICT, model=row.model, version=row.version, version_created=row.version_created, alias=row.alias,
        word=row.word, grants=bool(row.grants), moves=False, facts=facts,
    )  # fmt: skip


OTHERS = (
    ({"digest": "0" * 64}, "judged by policy smoke, digest 000000000000, which is not that of canary-mlflow"),
    ({"name": "perf"}, "while no policy was set and the model's tier is smoke"),
    ({"source": "file"}, "while no policy was set and the model's tier is smoke"),
    ({"source": "row", "row": 1}, "of row 1, which was not in force"),
)


def test_a_verdict_by_another_policy_is_named(recorded: Any) -> None:
    for _ in range(2):
        gate(recorded.client, recorded.model, recorded.version(runs=2), load_policy("smoke"))
    assert run(recorded.uri, "audit", "verify").exit_code == 0
    for policy, says in OTHERS:
        row = forge(recorded, verdict_row(recorded, server=True, **policy), key_folder())
        try:
            (found,) = policy_damages(registry_of(recorded.client).rows(everywhere=True))
            assert str(found).startswith(f"row {row.seq}: version 2 of {recorded.model!r}: ")
            assert says in str(found)
        finally:
            cut(recorded, row.seq)


def test_a_verdict_beside_a_set_policy_is_named(two: Any) -> None:
    row = forge(two, verdict_row(two, row=None, source="shipped", name="smoke"), key_folder())
    try:
        found = run(two.uri, "audit", "verify").output
        assert f"row {row.seq}: version 2 of {two.model!r}: judged by policy smoke" in found
        assert "was in force: policy careful" in found
    finally:
        cut(two, row.seq)


def test_a_policy_that_is_set_meanwhile_is_the_one_that_judges(guarded: Any, tmp_path: Path) -> None:
    policy = load_policy("smoke")
    version = guarded.version(slower=1.9)
    judged = assess(guarded.client, guarded.model, version, policy, Options())
    set_here(guarded, guarded.model, own_policy(tmp_path, "lax", rules={"step_cost": {"margin": 2.0}}))
    with pytest.raises(Exception, match="its verdict is by another policy than the one in force since row"):
        enact(registry_of(guarded.client), judged)
    assert gate(guarded.client, guarded.model, version, policy).word == "PASS"


def test_a_pass_by_a_former_policy_moves_nothing_later(guarded: Any) -> None:
    version = guarded.version()
    gate(guarded.client, guarded.model, version, load_policy("smoke"), promote=False)
    set_here(guarded, guarded.model, "perf")
    with pytest.raises(Exception, match="by another policy than the one in force"):
        guarded.client.set_registered_model_alias(guarded.model, "champion", version)
    assert guarded.champion() == "1"


def test_an_override_of_a_block_takes_two_people(two: Any) -> None:
    asked = override(two.client, two.model, "2", "slower is right", actor="ann")
    assert isinstance(asked, Request)
    assert (asked.who, two.champion(), two.tags("2")["canary.verdict"]) == ("ann", "1", "BLOCK")
    with pytest.raises(Refused, match=rf"'ann' has asked for it in row {asked.row} of the ledger"):
        override(two.client, two.model, "2", "again", actor="ann")
    with pytest.raises(Refused, match="expected somebody else to carry it out"):
        bless(two.client, two.model, "2", "by another door", despite_block=True, actor="ann")
    done = override(two.client, two.model, "2", "I agree", actor="bob")
    assert not isinstance(done, Request)
    assert (done.who, done.asked_by, two.champion()) == ("bob", "ann", "2")
    log = run(two.uri, "audit", "log", two.model).output.splitlines()
    assert f"by bob, asked for by ann in row {asked.row}: I agree" in log[-1]
    assert "request" in log[-2]
    assert "by ann: slower is right" in log[-2]
    verified = run(two.uri, "audit", "verify")
    assert verified.exit_code == 0, verified.output


@pytest.mark.full
def test_a_request_ends_when_the_champion_moves_or_the_verdict_is_another(two: Any) -> None:
    override(two.client, two.model, "2", "slower is right", actor="ann")
    gate(two.client, two.model, two.version(), load_policy("smoke"))
    assert two.champion() == "3"
    assert isinstance(override(two.client, two.model, "2", "I agree", actor="bob"), Request)
    gate(two.client, two.model, "2", load_policy("smoke"), promote=True)
    assert isinstance(override(two.client, two.model, "2", "so do I", actor="ann"), Request)
    assert two.champion() == "3"


def test_the_command_says_that_a_second_person_is_missing(two: Any) -> None:
    asked = run(two.uri, "override", two.model, "2", "--reason", "slower is right")
    assert (asked.exit_code, "Somebody else now runs" in asked.output) == (3, True)
    assert run(two.uri, "override", two.model, "2", "--reason", "once more").exit_code == 4
    assert two.champion() == "1"


def test_an_override_by_one_person_alone_is_named(two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canary_mlflow.registry.acts.by_hand.operators_for", lambda *_: 1)  # another program
    override(two.client, two.model, "2", "nobody needs to know", actor="eve")
    found = policy_damages(registry_of(two.client).rows(everywhere=True))
    assert [str(one) for one in found if two.model in str(one)] == [
        f"row {last_row(two).seq}: version 2 of {two.model!r}: the BLOCK of row {last_row(two).seq - 1} was overridden "
        f"by eve alone; the policy of row {registry_of(two.client).policy_rows(None)[-1].seq} asks for two people"
    ]


def test_one_person_is_enough_where_no_policy_says_more(guarded: Any) -> None:
    gate(guarded.client, guarded.model, guarded.version(slower=1.9), load_policy("smoke"))
    assert not isinstance(override(guarded.client, guarded.model, "2", "slower is right", actor="ann"), Request)


def test_only_operators_set_a_policy_where_some_are_named(recorded: Any) -> None:
    engine = registry_of(recorded.client).store.engine
    install.install(engine, operators=["ann"])
    try:
        with pytest.raises(Refused, match="'eve' is not among those who may"):
            set_here(recorded, recorded.model, "smoke", who="eve")
    finally:
        install.install(engine, operators=[])


def test_a_ledger_from_before_policies_holds() -> None:
    words = ["audit", "verify", str(DATA / "ledger_before_policies.jsonl")]
    done = CliRunner().invoke(canary, [*words, "--key", str(DATA / "ledger_before_policies.pem")])
    assert (done.exit_code, "rows hold" in done.output) == (0, True), done.output


def test_a_path_of_a_server_is_no_policy() -> None:
    from canary_mlflow.policies import checked_content

    with pytest.raises(UsageError, match="unknown key 'base'"):
        checked_content({"base": "/etc/passwd"})
