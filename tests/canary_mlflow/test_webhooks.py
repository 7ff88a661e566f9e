"""Webhooks: a session tells its own once per cause, MLflow's hear of the gate's moves; no receiver holds anybody up."""

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
from canary_mlflow.notify.events import of_decision
from canary_mlflow.notify.session import ask
from canary_mlflow.reports.decision import Decision, decision_from_dict
from canary_mlflow.reports.view import view_of

SECRET = "a secret of both sides"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as found:
        yield found


def canary(*words: str) -> Result:
    return CliRunner().invoke(command, list(words), catch_exceptions=False, prog_name="canary")


def test_mlflows_own_webhooks_hear_of_the_gates_promotion(recorded: Any, usual_session: str, tmp_path: Path) -> None:
    """On a real server: the tags and the alias, as from MLflow's own methods, and an alias that a client sets once."""
    from cryptography.fernet import Fernet
    from mlflow import MlflowClient

    environment = {
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http",
        "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": Fernet.generate_key().decode(),
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

        deployment.got.clear()
        body = {"model": recorded.model, "version": second, "promote": False}
        assert request(f"{server.uri}/api/2.0/canary/verdicts", "POST", body)["decision"]["decision"] == "PASS"
        deployment.events(4)
        deployment.got.clear()
        client.set_registered_model_alias(recorded.model, "champion", second)
        deployment.events(2, seconds=2)
        assert [one.event for one in deployment.got] == ["model_version_alias.created"]  # MLflow's own, and no second
        client.delete_webhook(hook.webhook_id)


@pytest.fixture
def of_session(receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """A session that was asked to tell a receiver."""
    monkeypatch.setenv("CANARY_NOTIFY", "")
    monkeypatch.setenv("CANARY_NOTIFY_FOLDER", "")
    monkeypatch.setenv("CANARY_NOTIFY_URL", receiver.url)
    monkeypatch.setattr(delivery, "FIRST_WAIT", 0.01)

    monkeypatch.setenv("DEPLOY_SECRET", SECRET)

    def begin(*about: str, **keys: str) -> None:
        entry = {"name": "webhook", "url_env": "CANARY_NOTIFY_URL", "format": "json", "about": about, **keys}
        ask(entry, tmp_path / "scratch", os.environ)

    return begin


def judged() -> Decision:
    plain = json.loads((Path(__file__).parents[1] / "data/verdicts/unclear_harm.json").read_text(encoding="utf-8"))
    return decision_from_dict(plain)


def tell_of(decision: Decision, tier: str) -> None:
    delivery.tell({decision.word.upper(), tier.upper()}, lambda: of_decision(decision))


def test_a_receiver_that_is_away_is_asked_again_with_the_same_signed_message(of_session: Any) -> None:
    for codes, sent in (([503, 429], 3), ([400], 1)):  # what it refuses it refuses again
        with Receiver(*codes) as late:
            of_session("INCONCLUSIVE", secret_env="DEPLOY_SECRET")
            os.environ["CANARY_NOTIFY_URL"] = late.url
            tell_of(replace(judged(), session_id=late.url), "smoke")
            delivery.OUTBOX.close(5)
            assert [one.event for one in late.got] == ["canary.verdict"] * sent
            assert len({one.headers["X-MLflow-Delivery-Id"] for one in late.got}) == 1
            assert all(one.signed_with(SECRET) and not one.signed_with("another") for one in late.got)


def test_slack_gets_text_that_is_no_link_and_no_mention(receiver: Receiver, of_session: Any) -> None:
    of_session("INCONCLUSIVE", format="slack")
    tell_of(replace(judged(), model=f"<!channel> {SHORT}"), "smoke")
    delivery.OUTBOX.close(5)
    (message,) = [one.body for one in receiver.got]
    said = message["blocks"][0]["text"]
    kind = (said["type"], said["emoji"], message["mrkdwn"], message["link_names"])
    assert kind == ("plain_text", False, False, False)
    assert "<" not in message["text"]
    assert "@everyone" not in message["text"]
    assert [one for one in obeyed(said["text"]) if one != "\n"] == []
    assert "channel" in said["text"]


def test_a_session_tells_its_verdict_once_with_the_numbers_of_the_card(receiver: Receiver, of_session: Any) -> None:
    of_session("INCONCLUSIVE")
    for _ in range(2):
        tell_of(judged(), "smoke")
    assert receiver.events(1) == ["canary.verdict"]
    delivery.OUTBOX.close(5)
    (got,) = [one.body for one in receiver.got]
    card = view_of(judged()).card_to_dict()
    assert card["rows"]
    assert got["data"]["card"] == card
    for row in card["rows"]:
        for cell in ("word", "metric", "baseline", "candidate", "change", "range", "limit"):
            assert row[cell] in got["text"], cell
    for said in (card["reason"], card["changed"], card["next"]):
        assert said in got["text"]


def test_a_session_tells_only_what_it_was_asked_for(receiver: Receiver, of_session: Any) -> None:
    tell_of(judged(), "nightly")
    of_session("BLOCK", "STOP")
    tell_of(judged(), "nightly")
    delivery.OUTBOX.close(5)
    assert receiver.got == []
    of_session("NIGHTLY")
    tell_of(judged(), "nightly")
    assert receiver.events(1) == ["canary.verdict"]


def test_seeds_of_a_session_tell_a_cause_once(
    receiver: Receiver, of_session: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from canary_mlflow.gates.watch import Watch
    from canary_mlflow.policies import load_watch
    from canary_mlflow.tracking.sinks import SinkSetting
    from canary_mlflow.tracking.watching import Watching

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
        tell_of(one, "nightly")
    delivery.OUTBOX.close(20)
    assert caplog.text.count("was not delivered: http://127.0.0.1:9/…") == 1


def test_an_address_that_is_none_is_refused_before_a_session_begins(tmp_path: Path) -> None:
    entry = {"name": "slack", "url_env": "SLACK", "format": "slack", "about": ["BLOCK"]}
    for environment, says in (({}, "the variable SLACK is not set"), ({"SLACK": "ftp://x"}, "no address")):
        with pytest.raises(UsageError, match=says):
            ask(entry, tmp_path, dict(environment))
    with pytest.raises(UsageError, match="no name of a variable") as refused:
        ask({**entry, "url_env": "https://hooks.test/a-secret"}, tmp_path, {})
    assert "a-secret" not in str(refused.value)
    with pytest.raises(UsageError, match="format: found 'xml'; expected json or slack"):
        ask({**entry, "format": "xml"}, tmp_path, {"SLACK": "https://x.test"})
    with pytest.raises(UsageError, match="secret_env: the variable NONE is not set"):
        ask({**entry, "secret_env": "NONE"}, tmp_path, {"SLACK": "https://x.test"})
    with pytest.raises(UsageError, match=r"notify.about: found MAYBE; expected some of BLOCK"):
        ask({**entry, "about": ["MAYBE"]}, tmp_path, {"SLACK": "https://x.test"})
