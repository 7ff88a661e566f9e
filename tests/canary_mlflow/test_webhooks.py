"""Webhooks: each verdict and move is sent once, signed; no receiver holds anybody up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from guard_doors import request
from hostile import SHORT, obeyed
from receiver import Receiver
from servers import Server

from canary_mlflow.cli import canary as command
from canary_mlflow.errors import UsageError
from canary_mlflow.notify import delivery
from canary_mlflow.notify.outcome import notify_outcome
from canary_mlflow.notify.session import ask
from canary_mlflow.notify.webhooks import EVENTS, read_webhooks
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.acts.by_hand import bless
from canary_mlflow.registry.acts.rollback import rollback
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.reports.card import card_of, card_to_dict
from canary_mlflow.reports.decision import Decision, decision_from_dict

SECRET = "a secret of both sides"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as found:
        yield found


@pytest.fixture
def listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Name a receiver in the file of webhooks; waits of seconds become short ones."""
    monkeypatch.setattr(delivery, "FIRST_WAIT", 0.01)
    monkeypatch.setenv("DEPLOY_SECRET", SECRET)

    def write(receiver: Receiver, **keys: Any) -> Path:
        file = tmp_path / "webhooks.yaml"
        entry = {"name": "deploy", "url": receiver.url, "secret_env": "DEPLOY_SECRET", **keys}
        file.write_text(json.dumps({"webhooks": [entry]}))
        monkeypatch.setenv("CANARY_WEBHOOKS", str(file))
        return file

    return write


def canary(*words: str) -> Result:
    return CliRunner().invoke(command, list(words), catch_exceptions=False, prog_name="canary")


def test_verdicts_promotions_and_rollbacks_are_told_signed(guarded: Any, receiver: Receiver, listen: Any) -> None:
    listen(receiver)
    slow, good = guarded.version(slower=2.0), guarded.version()
    gate(guarded.client, guarded.model, slow, load_policy("smoke"))
    gate(guarded.client, guarded.model, good, load_policy("smoke"))
    rollback(guarded.client, guarded.model, "it is slow in production")
    assert receiver.events(4) == ["canary.verdict", "canary.verdict", "canary.promotion", "canary.rollback"]
    assert all(one.signed_with(SECRET) and not one.signed_with("another") for one in receiver.got)
    assert [one.body["data"]["word"] for one in receiver.got] == ["BLOCK", "PASS", "PASS", "rollback"]
    told = receiver.got[2].body["data"]
    assert (told["model"], told["version"], told["baseline_version"]) == (guarded.model, good, 1)
    assert "it is slow in production" in receiver.got[3].body["text"]
    assert len({one.headers["X-MLflow-Delivery-Id"] for one in receiver.got}) == 4


def test_an_alias_that_a_client_sets_is_told_too(guarded: Any, receiver: Receiver, listen: Any) -> None:
    from canary_mlflow.registry.guard_client import guard_of

    good = guarded.version()
    gate(guarded.client, guarded.model, good, load_policy("smoke"), promote=False)
    listen(receiver)
    guard_of(guarded.client).set_registered_model_alias(guarded.model, "champion", good)
    assert receiver.events(1) == ["canary.promotion"]


def test_nothing_leaves_where_nobody_asked(guarded: Any, receiver: Receiver, listen: Any) -> None:
    listen(receiver, events=["canary.rollback"], models="prod-*")
    gate(guarded.client, guarded.model, guarded.version(), load_policy("smoke"))
    rollback(guarded.client, guarded.model, "another model's webhook")
    delivery.OUTBOX.close(5)
    assert receiver.got == []


def test_a_receiver_that_is_away_is_asked_again_and_holds_nobody_up(guarded: Any, listen: Any) -> None:
    with Receiver(503, 429) as late:
        listen(late, events=["canary.verdict"])
        decision = gate(guarded.client, guarded.model, guarded.version(), load_policy("smoke"))
        assert decision.promoted
        assert late.events(3) == ["canary.verdict"] * 3
        assert len({one.headers["X-MLflow-Delivery-Id"] for one in late.got}) == 1  # once per cause
    with Receiver(400) as against:
        listen(against, events=["canary.verdict"])
        gate(guarded.client, guarded.model, guarded.version(slower=2.0), load_policy("smoke"))
        delivery.OUTBOX.close(5)
        assert len(against.got) == 1  # what it refuses it refuses again


def test_a_broken_file_or_receiver_leaves_the_promotion(
    guarded: Any, listen: Any, caplog: pytest.LogCaptureFixture, receiver: Receiver
) -> None:
    file = listen(receiver, url="http://127.0.0.1:9/hook")
    one = guarded.version()
    assert gate(guarded.client, guarded.model, one, load_policy("smoke")).promoted
    delivery.OUTBOX.close(20)
    assert "webhook deploy: canary.promotion was not delivered: http://127.0.0.1:9/…: ConnectionError" in caplog.text
    file.write_text("webhooks: 3")
    two = guarded.version()
    assert gate(guarded.client, guarded.model, two, load_policy("smoke")).promoted
    assert guarded.champion() == two
    assert "nothing was sent" in caplog.text


def test_slack_gets_text_that_is_no_link_and_no_mention(recorded: Any, receiver: Receiver, listen: Any) -> None:
    listen(receiver, format="slack", events=["canary.promotion"])
    bless(recorded.client, recorded.model, recorded.version(), SHORT, actor=f"<!channel> {SHORT}")
    delivery.OUTBOX.close(5)
    (message,) = [one.body for one in receiver.got]
    said = message["blocks"][0]["text"]
    assert (said["type"], said["emoji"], message["mrkdwn"], message["link_names"]) == (
        "plain_text",
        False,
        False,
        False,
    )
    assert "<" not in message["text"]
    assert "@everyone" not in message["text"]
    assert obeyed(said["text"]) == []
    assert "is champion now" in said["text"]


def test_an_audit_that_fails_is_told_once(
    recorded: Any, receiver: Receiver, listen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from canary_mlflow.ledger.keys import key_folder

    gate(recorded.client, recorded.model, recorded.version(), load_policy("smoke"))
    rows = canary("audit", "export", "--tracking-uri", recorded.uri).stdout.splitlines()
    row = next(row for row in reversed(rows) if json.loads(row)["model"] == recorded.model)
    forged = tmp_path / "forged.jsonl"
    forged.write_text(row.replace('"grants": 1', '"grants": 0') + "\n")
    listen(receiver)
    for _ in range(2):
        assert canary("audit", "verify", str(forged)).exit_code == 1
    assert receiver.events(1) == ["canary.audit_failed"]
    delivery.OUTBOX.close(5)
    assert len(receiver.got) == 1
    assert receiver.got[0].body["data"]["number"] >= 1
    (key_folder() / "told").unlink()


def test_a_run_that_is_lost_is_told_once(receiver: Receiver, listen: Any, tmp_path: Path) -> None:
    from canary_mlflow.policies import load_watch
    from canary_mlflow.tracking.sinks import SinkSetting
    from canary_mlflow.tracking.watching import Watching
    from gates.watch import Watch

    listen(receiver, events=["canary.watch_critical", "canary.watch_stop"])
    setting = SinkSetting(folder=tmp_path, artifacts=tmp_path, algo="sft", batch_size=8)
    watching = Watching(Watch(load_watch(), max_steps=200), setting, 200, "run-1")
    for step in range(1, 120):
        watching.row_closed(step, {"loss": 2.0 - step / 200 if step < 60 else float("nan"), "grad_norm": 1.0})
    delivery.OUTBOX.close(5)
    assert receiver.got
    told = [(one.event, one.body["data"]["rule"], one.body["data"]["stream"]) for one in receiver.got]
    assert len(told) == len(set(told))
    assert {one.body["data"]["run_id"] for one in receiver.got} == {"run-1"}
    assert all(one.body["text"].startswith("The watch ") for one in receiver.got)


def test_they_are_listed_and_tried_without_their_secrets(
    receiver: Receiver, listen: Any, monkeypatch: pytest.MonkeyPatch, shared: Any
) -> None:
    monkeypatch.setenv("MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS", "true")
    monkeypatch.setenv("MLFLOW_WEBHOOK_ALLOWED_SCHEMES", "http")
    listen(receiver)
    listed = canary("webhooks", "list", "--tracking-uri", shared.uri)
    assert listed.exit_code == 0
    assert "deploy  http://127.0.0.1:" in listed.stdout
    assert "signed, models *" in listed.stdout
    assert "secret-path" not in listed.stdout
    assert SECRET not in listed.stdout
    plain = json.loads(canary("webhooks", "list", "--json", "--tracking-uri", shared.uri).stdout)
    assert plain["webhooks"][0]["events"] == list(EVENTS)
    tried = canary("webhooks", "test")
    assert (tried.exit_code, tried.stdout) == (0, "deploy: taken\n")
    assert receiver.events(1) == ["canary.test"]
    assert receiver.got[0].signed_with(SECRET)
    receiver.codes = [500]
    refused = canary("webhooks", "test", "deploy")
    assert (refused.exit_code, "answered 500" in refused.stdout) == (4, True)
    unknown = canary("webhooks", "test", "other")
    assert (unknown.exit_code, "no webhook called 'other' in " in unknown.stderr) == (2, True)
    monkeypatch.delenv("CANARY_WEBHOOKS")
    unset = canary("webhooks", "test")
    assert (unset.exit_code, "no webhook here: CANARY_WEBHOOKS is not set" in unset.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("webhooks: 3", "expected one key, webhooks, with a list"),
        ("{webhooks: [], other: 1}", "expected one key, webhooks, with a list"),
        ("webhooks: [3]", "webhook 1: int; expected keys name"),
        ("webhooks: [{name: a, url: 'ftp://x'}]", "webhook 1: no address"),
        ("webhooks: [{url: 'https://x.test'}]", "webhook 1: no name"),
        ("webhooks: [{name: a, url: 'https://x.test', events: [canary.all]}]", "events: found"),
        ("webhooks: [{name: a, url: 'https://x.test', format: xml}]", "format: found 'xml'; expected json or slack"),
        ("webhooks: [{name: a, url: 'https://x.test', secret: s}]", "unknown key 'secret'"),
        ("webhooks: [{name: a, url: 'https://x.test', secret_env: NO_SUCH}]", "the variable NO_SUCH is not set"),
        (
            "webhooks: [{name: a, url: 'https://x.test'}, {name: a, url: 'https://y.test'}]",
            "two webhooks are called 'a'",
        ),
    ],
)
def test_a_file_that_cannot_be_meant_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "webhooks.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_webhooks(file, {})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mlflows_own_webhooks_hear_of_the_gates_promotion(
    recorded: Any, usual_session: str, receiver: Receiver, listen: Any, tmp_path: Path
) -> None:
    """On a real server: the tags and the alias, as from MLflow's own methods, and an alias that a client sets once."""
    from cryptography.fernet import Fernet
    from mlflow import MlflowClient

    file = listen(receiver, events=["canary.promotion"])
    environment = {
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http",
        "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": Fernet.generate_key().decode(),
        "CANARY_WEBHOOKS": str(file),
        "DEPLOY_SECRET": SECRET,
    }
    first, second = recorded.register(usual_session), recorded.version()
    with (
        Receiver() as deployment,
        Server(
            recorded.uri, tmp_path, registry=f"canary+{recorded.uri}", app="canary", environment=environment
        ) as server,
    ):
        client = MlflowClient(server.uri)
        events = ["model_version_alias.created", "model_version_tag.set"]
        hook = client.create_webhook("deployment", deployment.url, events, secret="theirs")
        assert canary("gate", recorded.model, first, "--tracking-uri", server.uri).exit_code == 0
        aliases = ["model_version_alias.created"] * 2  # champion, and the anchor that it begins
        tags = ["canary.verdict", "canary.verdict_reason", "canary.baseline_version", "canary.policy"]
        assert sorted(deployment.events(6)) == sorted([*aliases, *["model_version_tag.set"] * len(tags)])
        assert all(one.signed_with("theirs") for one in deployment.got)
        data = [one.body["data"] for one in deployment.got]
        assert {one["key"] for one in data if "key" in one} == set(tags)
        assert {one["alias"] for one in data if "alias" in one} == {"champion", "anchor"}
        assert {(one["name"], one["version"]) for one in data} == {(recorded.model, first)}
        listed = canary("webhooks", "list", "--tracking-uri", server.uri).stdout
        assert "MLflow: 1" in listed
        assert "secret-path" not in listed

        deployment.got.clear()
        body = {"model": recorded.model, "version": second, "promote": False}
        assert request(f"{server.uri}/api/2.0/canary/verdicts", "POST", body)["decision"]["decision"] == "PASS"
        deployment.events(4)
        deployment.got.clear()
        client.set_registered_model_alias(recorded.model, "champion", second)
        deployment.events(2, seconds=2)
        assert [one.event for one in deployment.got] == ["model_version_alias.created"]  # MLflow's own, and no second
        assert receiver.events(3) == ["canary.promotion"] * 3  # champion, anchor; the second champion
        client.delete_webhook(hook.webhook_id)


@pytest.fixture
def of_session(receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """A session that was asked to tell a receiver."""
    monkeypatch.setenv("CANARY_NOTIFY", "")
    monkeypatch.setenv("CANARY_NOTIFY_FOLDER", "")
    monkeypatch.setenv("CANARY_NOTIFY_URL", receiver.url)
    monkeypatch.setattr(delivery, "FIRST_WAIT", 0.01)

    def begin(*about: str) -> None:
        entry = {"name": "webhook", "url_env": "CANARY_NOTIFY_URL", "about": about}
        ask(entry, tmp_path / "scratch", os.environ)

    return begin


def judged() -> Decision:
    plain = json.loads((Path(__file__).parents[1] / "data/verdicts/unclear_harm.json").read_text(encoding="utf-8"))
    return decision_from_dict(plain)


def test_a_session_tells_its_verdict_once_with_the_numbers_of_the_card(receiver: Receiver, of_session: Any) -> None:
    of_session("INCONCLUSIVE")
    for _ in range(2):
        notify_outcome(judged(), "smoke")
    assert receiver.events(1) == ["canary.verdict"]
    delivery.OUTBOX.close(5)
    (got,) = [one.body for one in receiver.got]
    card = card_to_dict(card_of(judged()))
    assert card["rows"]
    assert got["data"]["card"] == card
    for row in card["rows"]:
        for cell in ("word", "metric", "baseline", "candidate", "change", "range", "limit"):
            assert row[cell] in got["text"], cell
    for said in (card["reason"], card["changed"], card["next"]):
        assert said in got["text"]


def test_a_session_tells_only_what_it_was_asked_for(receiver: Receiver, of_session: Any) -> None:
    notify_outcome(judged(), "nightly")
    of_session("BLOCK", "STOP")
    notify_outcome(judged(), "nightly")
    delivery.OUTBOX.close(5)
    assert receiver.got == []
    of_session("NIGHTLY")
    notify_outcome(judged(), "nightly")
    assert receiver.events(1) == ["canary.verdict"]


def test_seeds_of_a_session_tell_a_cause_once(
    receiver: Receiver, of_session: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from canary_mlflow.policies import load_watch
    from canary_mlflow.tracking.sinks import SinkSetting
    from canary_mlflow.tracking.watching import Watching
    from gates.watch import Watch

    def lose(seed: int) -> None:
        setting = SinkSetting(folder=tmp_path / str(seed), artifacts=tmp_path, algo="sft", batch_size=8)
        watching = Watching(Watch(load_watch(), max_steps=200), setting, 200, f"run-{seed}")
        for step in range(1, 80):
            watching.row_closed(step, {"loss": 2.0 - step / 200 if step < 60 else float("nan"), "grad_norm": 1.0})
        delivery.OUTBOX.close(5)

    of_session("CRITICAL", "STOP")
    lose(0)
    told = len(receiver.got)
    assert told
    lose(1)
    assert len(receiver.got) == told
    os.environ["CANARY_NOTIFY_FOLDER"] = str(tmp_path / "the next session")
    lose(2)
    assert len(receiver.got) == 2 * told
    assert "not delivered" not in caplog.text


def test_a_receiver_that_is_away_is_one_line_of_a_session(of_session: Any, caplog: pytest.LogCaptureFixture) -> None:
    of_session("INCONCLUSIVE", "NIGHTLY")
    os.environ["CANARY_NOTIFY_URL"] = "http://127.0.0.1:9/hook"
    for one in (judged(), replace(judged(), session_id="another")):
        notify_outcome(one, "nightly")
    delivery.OUTBOX.close(20)
    assert caplog.text.count("was not delivered: http://127.0.0.1:9/…") == 1


def test_an_address_that_is_none_is_refused_before_a_session_begins(tmp_path: Path) -> None:
    entry = {"name": "slack", "url_env": "SLACK", "about": ["BLOCK"]}
    for environment, says in (({}, "the variable SLACK is not set"), ({"SLACK": "ftp://x"}, "no address")):
        with pytest.raises(UsageError, match=says):
            ask(entry, tmp_path, dict(environment))
    with pytest.raises(UsageError, match="no name of a variable") as refused:
        ask({**entry, "url_env": "https://hooks.test/a-secret"}, tmp_path, {})
    assert "a-secret" not in str(refused.value)
    with pytest.raises(UsageError, match=r"notify.about: found MAYBE; expected some of BLOCK"):
        ask({**entry, "about": ["MAYBE"]}, tmp_path, {"SLACK": "https://x.test"})
