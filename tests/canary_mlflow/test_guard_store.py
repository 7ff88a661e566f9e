"""The guarded registry in this process, on real SQLite: what it refuses, what it lets through, what it leaves alone."""

from __future__ import annotations

import os
import pwd
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import private_names
import pytest
import sqlalchemy as sa
from ledger_rows import note
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from canary_mlflow.errors import Refused, UsageError
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.ledger import install
from canary_mlflow.ledger.chain import Kind
from canary_mlflow.ledger.keys import key_folder, load_public, load_signer, public_files, publish
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.actors import account
from canary_mlflow.registry.acts.by_hand import bless, override
from canary_mlflow.registry.acts.rollback import rollback
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.binding import bind
from canary_mlflow.registry.guard.store import GuardedStore
from canary_mlflow.registry.judging.assessment import Judged, Options, assess
from canary_mlflow.registry.judging.gatekeeper import gate, order_of
from canary_mlflow.tracking.reading.histories import read_version


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy("smoke")


@pytest.fixture
def guard(recorded: Any) -> Any:
    return registry_of(recorded.client)


@pytest.fixture
def only_ann(guarded: Any, guard: Any) -> Iterator[None]:
    """A list of operators that is made while the guard is at work."""
    install.install(guard.store.engine, operators=["ann"])
    yield
    install.install(guard.store.engine, operators=[])


def judge_only(recorded: Any, version: str, policy: Policy) -> Judged:
    """A verdict in the ledger that has moved nothing yet, as a server keeps it."""
    judged = assess(recorded.client, recorded.model, version, policy, Options())
    registry_of(recorded.client).record(replace(order_of(judged, "ann"), moves=False))
    return judged


@dataclass(frozen=True)
class Attempt:
    """One way to get around a verdict, with what the answer must say."""

    name: str
    act: Callable[[Any, str], Any]  # the fixture `guarded`, the number of an unjudged version
    says: str
    code: str = "PERMISSION_DENIED"


IS_PROMPT = "mlflow.prompt.is_prompt"  # by which MLflow tells prompts from models


def alias(name: str) -> Callable[[Any, str], Any]:
    return lambda it, version: it.client.set_registered_model_alias(it.model, name, version)


def recreate(it: Any, version: str) -> Any:
    with sqlite3.connect(it.uri.removeprefix("sqlite:///")) as base:  # as the file's owner can
        for trigger in ("canary_alias_delete", "canary_model_delete"):
            text = base.execute("SELECT sql FROM sqlite_master WHERE name = ?", (trigger,)).fetchone()[0]
            base.execute(f"DROP TRIGGER {trigger}")
            base.execute("DELETE FROM registered_model_aliases WHERE name = ?", (it.model,))
            base.execute("DELETE FROM model_version_tags WHERE name = ?", (it.model,))
            base.execute("DELETE FROM model_versions WHERE name = ?", (it.model,))
            base.execute("DELETE FROM registered_models WHERE name = ?", (it.model,)) if "model" in trigger else None
            base.execute(text)
    return it.client.create_registered_model(it.model)


def tag(key: str) -> Callable[[Any, str], Any]:
    return lambda it, version: it.client.set_model_version_tag(it.model, version, key, "PASS")


OUTSIDE = "it has signs outside ASCII, with which it may look like a guarded one; expected plain letters"
ATTEMPTS = (
    Attempt("alias", alias("champion"), "there is no verdict for it in the ledger; run canary gate"),
    Attempt("alias in capitals", alias("Champion"), "there is no verdict for it in the ledger"),
    Attempt("alias in wide letters", alias("\uff43hampion"), OUTSIDE),
    Attempt("alias with an accent", alias("\u0109hampion"), OUTSIDE),
    Attempt("alias with a Cyrillic letter", alias("ch\u0430mpion"), OUTSIDE),
    Attempt("alias with a letter without its dot", alias("champ\u0131on"), OUTSIDE),
    Attempt("alias with a ligature", alias("\ufb01nal"), OUTSIDE),
    Attempt("alias with a line's end", alias("champion\n"), "there is no verdict for it in the ledger"),
    Attempt("anchor", alias("anchor"), "--alias anchor --reason"),
    Attempt("delete alias", lambda it, v: it.client.delete_registered_model_alias(it.model, "champion"), "not removed"),
    Attempt("rename", lambda it, v: it.client.rename_registered_model(it.model, f"{it.model}-n"), "renaming the model"),
    Attempt("delete model", lambda it, v: it.client.delete_registered_model(it.model), "deleting the model"),
    Attempt("delete version", lambda it, v: it.client.delete_model_version(it.model, "1"), "deleting the version"),
    Attempt("stage", lambda it, v: it.client.transition_model_version_stage(it.model, v, "production"), "no stages"),
    Attempt("tag", lambda it, v: it.client.set_model_version_tag(it.model, v, "canary.verdict", "PASS"), "tag 'canary"),
    Attempt("tag case", lambda it, v: it.client.set_model_version_tag(it.model, v, "Canary.Verdict", "PASS"), "tag"),
    Attempt("tag blank", lambda it, v: it.client.set_model_version_tag(it.model, v, " canary.verdict", "PASS"), "tag"),
    Attempt("tag with a Cyrillic letter", tag("c\u0430nary.verdict"), "tag 'c\u0430nary.verdict'"),
    Attempt("tag with an accent", tag("c\u00e1nary.verdict"), "tags that begin with canary. are written with"),
    Attempt("tag with a leader as its dot", tag("canary\u2024blessed_by"), "tags that begin with canary."),
    Attempt("tag of two scripts", tag("\u0441\u0430n\u0430ry.verdict"), "tags that begin with canary."),
    Attempt("untag", lambda it, v: it.client.delete_model_version_tag(it.model, "1", "canary.blessed_by"), "tag"),
    Attempt("session", lambda it, v: it.client.set_model_version_tag(it.model, v, "canary.session_id", "x"), "tag"),
    Attempt("model tag", lambda it, v: it.client.set_registered_model_tag(it.model, "canary.verdict", "PASS"), "tag"),
    Attempt("prompt", lambda it, v: it.client.set_registered_model_tag(it.model, IS_PROMPT, "true"), "stays a model"),
    Attempt("its version", lambda it, v: it.client.set_model_version_tag(it.model, "1", IS_PROMPT, "true"), "stays a"),
    Attempt("no prompt", lambda it, v: it.client.delete_registered_model_tag(it.model, IS_PROMPT), "stays a model"),
    Attempt("model untag", lambda it, v: it.client.delete_registered_model_tag(it.model, "canary.verdict"), "tag"),
    Attempt(
        "tag at birth",
        lambda it, v: it.client.create_model_version(it.model, "/x", tags={"canary.verdict": "PASS"}),
        "tag 'canary.verdict'",
    ),
    Attempt("rename onto a name with rows", lambda it, v: rename_onto(it), "rows about an earlier model"),
    Attempt("rename onto a name in use", lambda it, v: rename_onto_present(it), "of this name is there already"),
    Attempt("recreation", recreate, "rows about an earlier model"),
    Attempt("alias of a prompt", lambda it, v: prompt_alias(it), "there is no verdict"),
)  # fmt: skip


def prompt_alias(it: Any) -> Any:
    """Prompts share the tables."""
    name = f"{it.model}-prompt"
    it.client.register_prompt(name, "Say {{word}}")
    note(it.uri, name)
    return it.client.set_prompt_alias(name, "champion", 1)


def rename_onto(it: Any) -> Any:
    recreate_refused = pytest.raises(MlflowException)
    with recreate_refused:
        recreate(it, "")
    other = f"{it.model}-other"
    it.client.create_registered_model(other)
    return it.client.rename_registered_model(other, it.model)


def rename_onto_present(it: Any) -> Any:
    other = f"{it.model}-other"
    it.client.create_registered_model(other)
    return it.client.rename_registered_model(other, it.model)


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_what_has_no_verdict_is_refused_in_one_sentence(guarded: Any, attempt: Attempt) -> None:
    second = guarded.register(guarded.session(runs=1))
    with pytest.raises(MlflowException) as refused:
        attempt.act(guarded, second)
    assert refused.value.error_code == attempt.code
    assert refused.value.get_http_status_code() in (403, 409)
    message = str(refused.value.message)
    assert message.startswith("canary guard: ")
    assert attempt.says in message
    assert guarded.model in message
    assert "\n" not in message


def test_a_stock_client_on_the_same_file_is_refused_by_the_database(guarded: Any) -> None:
    second = guarded.register(guarded.session(runs=1))
    stock = MlflowClient(guarded.uri, registry_uri=guarded.uri)
    ways: dict[str, Callable[[], Any]] = {
        "alias": lambda: stock.set_registered_model_alias(guarded.model, "champion", second),
        "Cyrillic letter": lambda: stock.set_registered_model_alias(guarded.model, "ch\u0430mpion", second),
        "accent": lambda: stock.set_registered_model_alias(guarded.model, "\u0109hampion", second),
        "capitals": lambda: stock.set_registered_model_alias(guarded.model, "CHAMPION", second),
        "delete alias": lambda: stock.delete_registered_model_alias(guarded.model, "champion"),
        "delete version": lambda: stock.delete_model_version(guarded.model, "1"),
        "delete model": lambda: stock.delete_registered_model(guarded.model),
        "rename": lambda: stock.rename_registered_model(guarded.model, f"{guarded.model}-new"),
        "stage": lambda: stock.transition_model_version_stage(guarded.model, second, "Production"),
        "tag": lambda: stock.set_model_version_tag(guarded.model, second, "canary.verdict", "PASS"),
    }
    for name, way in ways.items():
        with pytest.raises(MlflowException, match="canary guard: ") as refused:
            way()
        assert refused.value.get_http_status_code() < 500, name
    assert guarded.champion() == "1"


EVIL = (
    "(workspace, name, version, creation_time, current_stage, source) "
    "SELECT workspace, name, version, creation_time, current_stage, '/evil' FROM model_versions"
)


def test_rows_of_the_ledger_are_only_added_even_with_sql(guarded: Any) -> None:
    guarded.register(guarded.session(runs=1))
    with sqlite3.connect(guarded.uri.removeprefix("sqlite:///")) as base:
        for statement in (
            "UPDATE canary_ledger SET word = 'PASS'",
            "DELETE FROM canary_ledger",
            "INSERT OR REPLACE INTO canary_ledger SELECT * FROM canary_ledger WHERE seq = 1",
            "UPDATE canary_guarded SET alias = 'none'",
            "DELETE FROM canary_guarded",
            "INSERT INTO canary_operators VALUES ('eve')",
            "INSERT OR REPLACE INTO registered_model_aliases (workspace, name, alias, version) "
            f"VALUES ('default', '{guarded.model}', 'champion', 2)",
            f"INSERT OR REPLACE INTO model_versions {EVIL} WHERE name = '{guarded.model}' AND version = 1",
            f"UPDATE OR REPLACE model_versions SET version = 1 WHERE name = '{guarded.model}' AND version = 2",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="canary guard: "):
                pytest.fail(f"{statement}: {base.execute(statement).rowcount} rows")


def test_what_nobody_guards_is_stock(guarded: Any) -> None:
    client, second = guarded.client, guarded.register(guarded.session(runs=1))
    client.set_registered_model_alias(guarded.model, "candidate", second)
    client.set_model_version_tag(guarded.model, second, "team", "blue")
    for key in ("модель.версия", "日本語日本語.x", "größe", "canaries.in", "canary", "Canaryß"):
        client.set_model_version_tag(guarded.model, second, key, "theirs")
    client.delete_model_version_tag(guarded.model, second, "team")
    client.update_model_version(guarded.model, second, "words")
    client.delete_registered_model_alias(guarded.model, "candidate")
    client.delete_model_version(guarded.model, second)
    with pytest.raises(MlflowException, match="not found") as missing:
        client.set_registered_model_alias(guarded.model, "champion", "77")
    assert missing.value.get_http_status_code() == 404
    with pytest.raises(MlflowException) as wrong:
        client.set_registered_model_alias(guarded.model, "champion", "seven")
    assert wrong.value.get_http_status_code() == 400


def test_a_copy_leaves_the_verdict_behind(guarded: Any) -> None:
    source = guarded.client.get_model_version(guarded.model, "1")
    copy = guarded.client.copy_model_version(f"models:/{guarded.model}/1", f"{guarded.model}-copy")
    assert source.tags["canary.verdict"] == "blessed"
    assert not [key for key in guarded.client.get_model_version(copy.name, copy.version).tags if "verdict" in key]
    within = guarded.client.copy_model_version(f"models:/{guarded.model}/1", guarded.model)
    with pytest.raises(MlflowException, match="there is no verdict"):
        guarded.client.set_registered_model_alias(guarded.model, "champion", within.version)


def test_a_pass_in_the_ledger_lets_the_alias_follow_once(guarded: Any, policy: Policy, guard: Any) -> None:
    second, third = guarded.version(), guarded.version()
    judge_only(guarded, second, policy)
    judge_only(guarded, third, policy)
    assert guarded.champion() == "1"
    guarded.client.set_registered_model_alias(guarded.model, "champion", second)
    assert guarded.champion() == second
    with pytest.raises(MlflowException, match=f"judged against .*but the champion is version {second}") as late:
        guarded.client.set_registered_model_alias(guarded.model, "champion", third)
    assert late.value.get_http_status_code() == 409
    rows = [row for row in guard.rows(guarded.model) if row.kind not in (Kind.SEAL, Kind.SESSION)]
    assert [(row.kind, row.version, row.moves) for row in rows] == [
        ("bless", 1, 1), ("verdict", 2, 0), ("verdict", 3, 0), ("promotion", 2, 1),
    ]  # fmt: skip
    assert rows[-1].facts["verdict_row"] == rows[1].seq


@pytest.mark.parametrize("changed", ["metric", "file", "new file", "run deleted"])
def test_a_verdict_on_what_has_changed_since_is_stale(guarded: Any, policy: Policy, changed: str) -> None:
    session = guarded.session()
    run_id = guarded.children(session)[0]
    place = Path(guarded.client.get_run(run_id).info.artifact_uri.removeprefix("file://")) / "model"
    place.mkdir(parents=True)
    (place / "weights").write_bytes(b"good")
    second = guarded.register(session)
    judge_only(guarded, second, policy)
    if changed == "metric":
        guarded.client.log_batch(run_id, metrics=[Metric("perf/step_time", 0.001, 1, 40)])  # on a finished run
        guarded.client.log_batch(run_id, metrics=[Metric("perf/step_time", 0.001, 1_900_000_000_000, 40)])
    elif changed == "run deleted":
        guarded.client.delete_run(run_id)
    else:
        (place / ("weights" if changed == "file" else "more")).write_bytes(b"evil")
    with pytest.raises(MlflowException, match=r"the verdict is stale, .*; judge again: canary gate") as stale:
        guarded.client.set_registered_model_alias(guarded.model, "champion", second)
    assert stale.value.get_http_status_code() == 409
    assert guarded.champion() == "1"
    shutil.rmtree(place)


def test_a_row_by_an_unknown_key_moves_nothing(
    guarded: Any, policy: Policy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    second, trusted = guarded.version(), public_files(key_folder())
    with monkeypatch.context() as forger:
        forger.setenv("CANARY_KEYS", str(tmp_path))
        forger.setattr("canary_mlflow.ledger.writing.objection", lambda *words: "")  # and asks nobody whether it may
        load_signer(key_folder())
        for file in trusted:  # whoever forges a verdict takes the true seal for true
            shutil.copy(file, tmp_path / "public")
        judge_only(guarded, second, policy)
    with pytest.raises(MlflowException, match=r"not among the trusted ones.*see canary audit verify"):
        guarded.client.set_registered_model_alias(guarded.model, "champion", second)


@pytest.mark.parametrize(("meanwhile", "says"), [("source", "made anew or changed"), ("key", "not among the trusted")])
def test_what_changes_while_the_evidence_is_read_moves_nothing(
    guarded: Any, policy: Policy, guard: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, meanwhile: str, says: str
) -> None:
    """Between the reading of files and metrics and the lock, by another client of the same database."""
    second, ours = guarded.version(), key_folder()
    with monkeypatch.context() as colleague:
        if meanwhile == "key":
            colleague.setenv("CANARY_KEYS", str(tmp_path / "keys"))
            colleague.setattr("canary_mlflow.ledger.writing.objection", lambda *words: "")
            signer = load_signer(key_folder())
            for file in public_files(ours):
                shutil.copy(file, tmp_path / "keys" / "public")
            publish(signer.key.public_key(), ours)
        judge_only(guarded, second, policy)
    read = GuardedStore.binding_now  # the class: the client's store need not be the one the fixture found

    def slowly(*words: Any) -> Any:
        found = read(*words)
        if meanwhile == "key":
            (ours / "public" / f"{signer.key_id}.pem").unlink()
        else:
            with sqlite3.connect(guarded.uri.removeprefix("sqlite:///")) as base:
                where = "WHERE name = ? AND version = ?"
                base.execute(f"UPDATE model_versions SET source = '/evil' {where}", (guarded.model, second))
        return found

    monkeypatch.setattr(GuardedStore, "binding_now", slowly)
    with pytest.raises(MlflowException, match=says):
        guarded.client.set_registered_model_alias(guarded.model, "champion", second)
    assert guarded.champion() == "1"


def test_a_block_is_in_the_ledger_and_grants_nothing(guarded: Any, policy: Policy, guard: Any) -> None:
    second = guarded.version(slower=2.0)
    gate(guarded.client, guarded.model, second, policy)
    row = guard.rows(guarded.model)[-1]
    assert (row.kind, row.word, row.grants, row.moves) == ("verdict", "BLOCK", 0, 0)
    with pytest.raises(MlflowException, match="its verdict is BLOCK, a PASS is missing"):
        guarded.client.set_registered_model_alias(guarded.model, "champion", second)


def test_a_row_says_what_it_was_about(guarded: Any, policy: Policy, guard: Any) -> None:
    second = guarded.version()
    gate(guarded.client, guarded.model, second, policy, actor="ann")
    row = guard.rows(guarded.model)[-1]
    facts = row.facts
    found = guarded.client.get_model_version(guarded.model, second)
    runs = [run for number in (second, "1") for run in read_version(guarded.client, guarded.model, number).runs]
    assert (facts["actor"], facts["baseline_version"], facts["word"]) == ("ann", 1, "PASS")
    assert (row.version_created, facts["source"]) == (found.creation_timestamp, found.source)
    bound = bind(guard, found, runs).to_facts()
    seal = next(row for row in guard.rows(guarded.model) if row.kind == Kind.SEAL and row.version == int(second))
    keys = ("artifact", "runs", "source", "seal_row")
    assert {key: facts[key] for key in keys} == {**bound, "seal_row": seal.seq}
    assert facts["verdict"]["policy"]["name"] == "smoke"
    assert facts["software"]["mlflow"]
    assert row.key_id in load_public(public_files(key_folder())).keys


def test_overrides_need_a_reason_and_stay_on_the_version(guarded: Any, policy: Policy, guard: Any) -> None:
    second = guarded.version(slower=2.0)
    gate(guarded.client, guarded.model, second, policy)
    with pytest.raises(UsageError, match="--reason: found an empty text"):
        override(guarded.client, guarded.model, second, " ")
    act = override(guarded.client, guarded.model, second, "the slow path is right")
    assert guarded.champion() == second
    assert guard.rows(guarded.model)[-1].kind == Kind.OVERRIDE
    tags = guarded.tags(second)
    assert (tags["canary.overridden_by"], tags["canary.overridden_over"]) == (act.who, "BLOCK")
    with pytest.raises(MlflowException, match=r"tag 'canary\.overridden_by'"):
        guarded.client.delete_model_version_tag(guarded.model, second, "canary.overridden_by")


def test_the_anchor_moves_by_override_only(guarded: Any) -> None:
    override(guarded.client, guarded.model, "1", "where we began", alias="anchor")
    assert str(guarded.client.get_registered_model(guarded.model).aliases["anchor"]) == "1"
    with pytest.raises(MlflowException, match="not removed"):
        guarded.client.delete_registered_model_alias(guarded.model, "anchor")


def test_rollback_returns_step_by_step(guarded: Any) -> None:
    for number in ("2", "3"):
        bless(guarded.client, guarded.model, guarded.register(guarded.session(runs=1)), f"number {number}")
    for expected in ("2", "1"):
        act = rollback(guarded.client, guarded.model, "it broke the product")
        assert (act.version, guarded.champion()) == (expected, expected)
    with pytest.raises(UsageError, match="knows no champion before version 1"):
        rollback(guarded.client, guarded.model, "further")


def test_a_verdict_from_before_a_rollback_is_spent(guarded: Any, policy: Policy) -> None:
    second = guarded.version()
    gate(guarded.client, guarded.model, second, policy)
    rollback(guarded.client, guarded.model, "it broke the product")
    with pytest.raises(MlflowException) as spent:
        guarded.client.set_registered_model_alias(guarded.model, "champion", second)
    assert spent.value.get_http_status_code() == 409
    assert guarded.champion() == "1"


def test_who_acts_is_the_account_whatever_the_environment_says(
    guarded: Any, only_ann: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = guarded.register(guarded.session(runs=1))
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "ann")
    with pytest.raises(Refused, match=rf"'{pwd.getpwuid(os.getuid()).pw_name}' is not among those who may \(ann\)"):
        bless(guarded.client, guarded.model, second, "because")


def test_only_operators_act_where_there_is_a_list(guarded: Any, only_ann: None) -> None:
    second = guarded.register(guarded.session(runs=1))
    with pytest.raises(Refused, match=rf"{account()!r} is not among those who may \(ann\)"):
        bless(guarded.client, guarded.model, second, "because")
    assert bless(guarded.client, guarded.model, second, "because", actor="ann").who == "ann"


def test_of_many_promoters_at_once_one_wins(guarded: Any, policy: Policy, guard: Any) -> None:
    versions = [guarded.register(guarded.session(runs=1)) for _ in range(8)]
    against = guard.standing(guarded.model)
    usual = judge_only(guarded, guarded.version(), policy)
    for version in versions:
        found = guarded.client.get_model_version(guarded.model, version)
        decision = replace(usual.decision, version=version)
        binding = bind(guard, found, read_version(guarded.client, guarded.model, version).runs)
        judged = Judged(decision=decision, binding=binding, against=against)
        guard.record(replace(order_of(judged, "ann"), moves=False))

    def promote(version: str) -> int:
        try:
            MlflowClient(guarded.uri, registry_uri=f"canary+{guarded.uri}").set_registered_model_alias(
                guarded.model, "champion", version
            )
        except MlflowException as error:
            return int(error.get_http_status_code())
        return 200

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(promote, versions))
    assert sorted(answers) == [200] + [409] * 7
    assert guarded.champion() == versions[answers.index(200)]
    moves = guard.moves(guarded.model)
    assert [str(row.version) for row in moves] == [guarded.champion(), "1"]


def test_every_private_name_of_mlflow_is_there(guard: Any) -> None:
    assert private_names.missing() == []
    inspector = sa.inspect(guard.store.engine)
    for name, columns in private_names.COLUMNS:
        assert set(columns) <= {column["name"] for column in inspector.get_columns(name)}


def test_a_private_name_that_goes_is_listed() -> None:
    gone = ("mlflow.store.model_registry.sqlalchemy_store", "SqlAlchemyStore._gone")
    assert private_names.missing((*private_names.NAMES, gone, ("mlflow.gone", "x"))) == [
        "mlflow.store.model_registry.sqlalchemy_store:SqlAlchemyStore._gone",
        "mlflow.gone:x",
    ]
