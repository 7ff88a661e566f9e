"""canary audit, override, rollback, keys, db: the ledger at the command line, on a real SQLite store."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from mlflow.entities import Metric

from canary_mlflow.cli import canary
from canary_mlflow.ledger import chain
from canary_mlflow.ledger.chain import flat
from canary_mlflow.ledger.keys import key_folder, load_signer
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.tracking.stores.store import prepare_store


def run(uri: str, *words: str) -> Result:
    return CliRunner().invoke(canary, [*words, "--tracking-uri", uri])


@pytest.fixture(scope="module")
def story(shared: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store of its own, whose ledger nobody damages: a bootstrap, a PASS, a BLOCK and an override, in that order."""
    folder = tmp_path_factory.mktemp("told")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = prepare_store(uri)
    experiment = client.create_experiment("told", artifact_location=str(folder / "mlruns"))
    story = replace(shared, client=client, uri=uri, experiment=experiment, model="told-by-commands", seed=0)
    policy = load_policy("smoke")
    gate(story.client, story.model, story.version(), policy, actor="ann")
    gate(story.client, story.model, story.version(), policy, actor="bob")
    gate(story.client, story.model, story.version(slower=2.0), policy, actor="bob")
    done = run(story.uri, "override", story.model, "3", "--reason", "slower is right")
    assert done.exit_code == 0, done.output
    return story


@pytest.fixture
def own(story: Any, tmp_path: Path) -> str:
    """A copy of the database, to be damaged."""
    copy = tmp_path / "mlflow.db"
    with sqlite3.connect(story.uri.removeprefix("sqlite:///")) as whole, sqlite3.connect(copy) as made:
        whole.backup(made)
    return f"sqlite:///{copy}"


def damage(uri: str, *statements: str) -> None:
    """As the file's owner can: without the triggers, which are put back."""
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as base:
        triggers = base.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            base.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            assert base.execute(statement).rowcount > 0, statement
        for _, text in triggers:
            base.execute(text)


def test_the_log_tells_the_story(story: Any) -> None:
    lines = run(story.uri, "audit", "log", story.model).output.splitlines()
    assert [line.split()[2:4] for line in lines] == [
        ["session", "ended"],
        ["seal", "sealed"], ["bootstrap", "bootstrap"], ["bootstrap", "bootstrap"],  # champion and anchor
        ["session", "ended"], ["seal", "sealed"], ["verdict", "PASS"],
        ["session", "ended"], ["seal", "sealed"], ["verdict", "BLOCK"], ["override", "override"],
    ]  # fmt: skip
    assert "version 2 over version 1, champion moved, by bob: No worse" in lines[6]
    assert "champion moved" not in lines[9]
    assert lines[10].endswith(": slower is right")


def test_blame_names_version_verdict_and_person(story: Any) -> None:
    rows = [json.loads(line) for line in run(story.uri, "audit", "export").output.splitlines()]
    mine = [json.loads(row["body"]) for row in rows if row["model"] == story.model]
    at_the_pass = run(story.uri, "audit", "blame", story.model, "--at", mine[6]["time"])
    assert "version 2" in at_the_pass.output
    assert "by bob" in at_the_pass.output
    assert "version 3" in run(story.uri, "audit", "blame", story.model).output
    before = run(story.uri, "audit", "blame", story.model, "--at", "2020-01-01")
    assert (before.exit_code, "none yet; the first is in row" in before.output) == (2, True)
    wrong = run(story.uri, "audit", "blame", story.model, "--at", "yesterday")
    assert (wrong.exit_code, "no date; expected" in wrong.output) == (2, True)
    nobody = run(story.uri, "audit", "log", "nobody")
    assert (nobody.exit_code, "no row of the ledger is about it" in nobody.output) == (2, True)


def test_the_ledger_holds_and_an_export_holds_elsewhere(own: str, tmp_path: Path) -> None:
    held = run(own, "audit", "verify")
    assert held.exit_code == 0, held.output
    head = held.output.split("head ")[1].strip()
    file = tmp_path / "ledger.jsonl"
    file.write_text(run(own, "audit", "export").output)
    public = key_folder() / "public" / f"{load_signer(key_folder()).key_id}.pem"
    offline = CliRunner().invoke(canary, ["audit", "verify", str(file), "--key", str(public), "--head", head])
    assert (offline.exit_code, "rows hold" in offline.output) == (0, True)
    stranger = tmp_path / "stranger"
    assert CliRunner().invoke(canary, ["keys", "rotate"], env={"CANARY_KEYS": str(stranger)}).exit_code == 0
    unknown = CliRunner().invoke(canary, ["audit", "verify", str(file)], env={"CANARY_KEYS": str(stranger)})
    assert unknown.exit_code == 1
    assert "row 1: it is signed with key " in unknown.output
    assert unknown.output.endswith("is given with --key FILE, or with canary keys trust FILE.\n")
    file.write_text("\n".join(file.read_text().splitlines()[:-1]))
    shorter = CliRunner().invoke(canary, ["audit", "verify", str(file), "--head", head])
    assert (shorter.exit_code, "the ledger ends at row" in shorter.output) == (1, True)
    file.write_text("")
    empty = CliRunner().invoke(canary, ["audit", "verify", str(file)])
    assert empty.exit_code == 2
    assert "no row in it, so nothing holds; expected what `canary audit export` writes" in empty.output


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (["UPDATE canary_ledger SET body = replace(body, 'bob', 'eve') WHERE word = 'PASS'"], "not match the digest"),
        (["UPDATE canary_ledger SET word = 'PASS', grants = 1 WHERE word = 'BLOCK'"], "columns differ"),
        (["UPDATE canary_ledger SET signature = (SELECT signature FROM canary_ledger WHERE seq = 1) WHERE seq = 2"],
         "row 2: its signature is not"),
        (["UPDATE canary_ledger SET body = 'x' WHERE word = 'PASS'"], "is not a JSON object"),
        (["UPDATE canary_ledger SET seq = -1 WHERE seq = 1", "UPDATE canary_ledger SET seq = 1 WHERE seq = 2",
          "UPDATE canary_ledger SET seq = 2 WHERE seq = -1"], "row 1: its columns differ"),
        (["DELETE FROM canary_ledger WHERE seq = (SELECT max(seq) FROM canary_ledger)"],
         "champion of 'told-by-commands'"),
        (["UPDATE registered_model_aliases SET version = 1 WHERE name = 'told-by-commands'"],
         "champion of 'told-by-commands' is version 1; the ledger says version 3"),
        (["DELETE FROM registered_model_aliases WHERE name = 'told-by-commands'"], "is nothing; the ledger says"),
        (["DELETE FROM canary_guarded WHERE alias = 'champion'"],
         "champion of 'told-by-commands' is guarded no more; the ledger says version 3; canary db install --guard "),
        (["UPDATE model_versions SET source = '/elsewhere' WHERE name = 'told-by-commands' AND version = 2"],
         "the version's source is another"),
        (["UPDATE metrics SET value = value + 1 WHERE step = 40 AND key = 'perf/step_time'"],
         "the metrics or facts of run"),
        (["UPDATE tags SET value = 'false' WHERE key = 'canary.learned'"], "the metrics or facts of run"),
        (["DELETE FROM metrics WHERE step = 1"], "the metrics or facts of run"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_was_changed_behind_its_back_is_named(own: str, statements: list[str], says: str) -> None:
    damage(own, *statements)
    done = run(own, "audit", "verify")
    assert done.exit_code == 1
    assert says in done.output
    assert "Traceback" not in done.output


JUNK = ["x", "[" * 100_000, '{"time": 5, "runs": [1], "verdict": {"checks": ["x"]}}', "x'00ff'"]


@pytest.mark.parametrize("body", JUNK, ids=lambda body: body[:20])
def test_a_row_that_is_junk_ends_no_reader_in_a_traceback(own: str, story: Any, body: str) -> None:
    """Whoever may add rows may add such; `verify` names it, and the others go on."""
    text = body if body.startswith("x'") else f"'{body}'"
    damage(
        own,
        "INSERT INTO canary_ledger SELECT seq + 1, kind, workspace, model, version, version_created, alias, word, "
        f"1, 1, {text}, digest, key_id, signature FROM canary_ledger ORDER BY seq DESC LIMIT 1",
    )
    log = run(own, "audit", "log", story.model)
    assert (log.exit_code, len(log.output.splitlines())) == (0, 12), log.output
    blame = run(own, "audit", "blame", story.model)
    assert (blame.exit_code, len(blame.output.splitlines())) == (0, 1), blame.output
    for command, code in ((("audit", "verify"), 1), (("audit", "export"), 0), (("gate", story.model, "2"), None)):
        done = run(own, *command)
        assert type(done.exception) in (type(None), SystemExit), (command, done.exception)
        assert code in (None, done.exit_code), done.output
    assert "row 12: its text does not match the digest" in run(own, "audit", "verify").output


def test_a_clock_that_was_set_back_is_named_and_changes_no_order(own: str, story: Any, monkeypatch: Any) -> None:
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now - 86_400)
    for version in ("2", "1"):
        done = run(own, "override", story.model, version, "--reason", "yesterday")
        assert done.exit_code == 0, done.output
    monkeypatch.undo()
    rows = [flat(json.loads(json.loads(line)["body"])) for line in run(own, "audit", "export").output.splitlines()]
    times = [row["time"] for row in rows if row["model"] == story.model]
    assert times == sorted(times)
    assert [row["time"] > row["clock"] for row in rows if "clock" in row] == [True, True]
    assert "version 1" in run(own, "audit", "blame", story.model).output
    held = run(own, "audit", "verify")
    assert held.exit_code == 0
    assert len([line for line in held.output.splitlines() if line.startswith("note: row 12: the clock of its")]) == 1
    assert held.output.count("note: ") == 1


def test_a_row_with_a_time_before_the_one_before_it_is_named(own: str, story: Any, monkeypatch: Any) -> None:
    """As a clock that was set back left it before rows said so; signed with the account's own key."""
    now = time.time()
    monkeypatch.setattr(chain, "stamp", lambda _last: {"time": datetime.fromtimestamp(now - 7200, UTC).isoformat()})
    assert run(own, "rollback", story.model, "--reason", "two hours ago").exit_code == 0
    found = run(own, "audit", "verify")
    assert found.exit_code == 1
    assert re.search(r"row 12: its time is 1:59:\d\d before that of row 11|its time is 2:00:00 before", found.output)
    assert "version 2" in run(own, "audit", "blame", story.model).output


def test_a_changed_file_of_a_version_is_named(story: Any) -> None:
    recorded = replace(story, model="with-files")
    session = recorded.session(runs=1)
    run_id = recorded.children(session)[0]
    place = Path(recorded.client.get_run(run_id).info.artifact_uri.removeprefix("file://")) / "model"
    place.mkdir(parents=True)
    (place / "weights").write_bytes(b"good")
    version = recorded.register(session)
    done = run(recorded.uri, "override", recorded.model, version, "--reason", "a start")
    assert done.exit_code == 0, done.output
    (place / "weights").write_bytes(b"evil")
    found = run(recorded.uri, "audit", "verify")
    assert (found.exit_code, found.output.count("weights changed since it was sealed")) == (1, 1)
    assert "its files changed" not in found.output
    shutil.rmtree(place.parent)
    (place).mkdir(parents=True)
    (place / "weights").write_bytes(b"good")
    recorded.weights(run_id)
    assert "since it was sealed" not in run(recorded.uri, "audit", "verify").output


def test_a_dropped_trigger_is_named_and_put_back(own: str) -> None:
    with sqlite3.connect(own.removeprefix("sqlite:///")) as base:
        base.execute("DROP TRIGGER canary_alias_insert")
    assert "the trigger canary_alias_insert is gone" in run(own, "audit", "verify").output
    assert "missing: canary_alias_insert" in run(own, "db", "status").output
    assert "triggers   in place" in run(own, "db", "install").output
    assert run(own, "audit", "verify").exit_code == 0


def test_a_trigger_that_says_something_else_is_named(own: str) -> None:
    with sqlite3.connect(own.removeprefix("sqlite:///")) as base:
        base.execute("DROP TRIGGER canary_alias_insert")
        base.execute("CREATE TRIGGER canary_alias_insert BEFORE INSERT ON registered_model_aliases BEGIN SELECT 1; END")
    assert "the trigger canary_alias_insert is gone" in run(own, "audit", "verify").output


def test_what_is_guarded_can_be_chosen(own: str) -> None:
    done = run(own, "db", "install", "--guard", "champion=prod-*", "--operator", "ann", "--operator", "bob")
    assert "guarded    champion of prod-*" in done.output
    assert "operators  ann, bob" in done.output
    client = prepare_store(own)
    for model in ("prod-x", "lab_x"):
        client.create_registered_model(model)
        client.create_model_version(model, "/nowhere")
    client.set_registered_model_alias("lab_x", "champion", "1")
    assert str(client.get_model_version_by_alias("lab_x", "champion").version) == "1"
    with pytest.raises(Exception, match="there is no verdict"):
        client.set_registered_model_alias("prod-x", "champion", "1")
    for words, says in (
        (("db", "install", "--guard", "cham pion"), "expected ALIAS or ALIAS=MODELS"),
        (("db", "install", "--server-role", "mlflow"), "SQLite has no roles"),
        (("override", "prod-x", "1", "--reason", "because"), "is not among those who may (ann, bob)"),
    ):
        refused = run(own, *words)
        assert refused.exit_code in (2, 4)
        assert says in refused.output


def test_rollback_at_the_command_line(own: str, story: Any) -> None:
    done = run(own, "rollback", story.model, "--reason", "customers complain", "--json")
    plain = json.loads(done.stdout)
    assert (plain["decision"], plain["version"], plain["champion_before"]) == ("rollback", "2", "3")
    assert "Version 2 of told-by-commands is champion now (before: version 3): rollback by" in done.stderr


def test_keys_are_listed_rotated_and_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CANARY_KEYS", str(tmp_path / "mine"))
    runner = CliRunner()
    assert "no private key yet" in runner.invoke(canary, ["keys", "list"]).output
    assert "signs from now on" in runner.invoke(canary, ["keys", "rotate"]).output
    other = load_signer(tmp_path / "other")
    file = tmp_path / "other" / "public" / f"{other.key_id}.pem"
    assert runner.invoke(canary, ["keys", "trust", str(file)]).output == f"{other.key_id} is trusted from now on.\n"
    listed = runner.invoke(canary, ["keys", "list"]).output
    assert listed.count("(signs)") == 1
    assert other.key_id in listed
    wrong = runner.invoke(canary, ["keys", "trust", str(tmp_path / "other" / "signing.pem")])
    assert (wrong.exit_code, "no public key in PEM" in wrong.output) == (2, True)


def test_metrics_added_after_the_verdict_are_named(story: Any) -> None:
    recorded = replace(story, model="with-late-metrics")
    policy = load_policy("smoke")
    session = recorded.session()
    gate(recorded.client, recorded.model, recorded.register(session), policy)
    late = recorded.children(session)[0]
    recorded.client.log_batch(late, metrics=[Metric("perf/step_time", 0.01, 1_900_000_000_000, 41)])
    assert f"the metrics or facts of run {late} changed" in run(recorded.uri, "audit", "verify").output
