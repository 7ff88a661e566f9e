"""Tells the session's webhook, in a separate thread, with retries if the receiver does not accept a message. Only the
end of the process waits for them, and only for a while."""

from __future__ import annotations

import atexit
import base64
import hashlib
import hmac
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from canary_mlflow.errors import one_line
from canary_mlflow.notify.events import Event
from canary_mlflow.notify.session import Webhook, asked, first

log = logging.getLogger(__name__)

TRIES = 5
FIRST_WAIT = 1.0  # seconds; twice as long before each further try
SECONDS = 10.0  # for one try
PATIENCE = 20.0  # seconds that the end of a process waits for unsent messages
AGAIN = (408, 425, 429, 500, 502, 503, 504)
MOST = 2900  # characters; Slack accepts 3,000 in a section


class Outbox:
    """A queue and its thread, which starts with the first message."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[Webhook, Event]] = queue.Queue()
        self._lock = threading.Lock()
        self._process = 0  # the process that has the thread: a fork has none

    def put(self, webhook: Webhook, event: Event) -> None:
        """Queue a message. They are few: each cause is told once."""
        self._waiting.put((webhook, event))
        with self._lock:
            if self._process != os.getpid():
                self._process = os.getpid()
                threading.Thread(target=self._work, name="canary-notify", daemon=True).start()
                atexit.register(self.close)

    def close(self, patience: float = PATIENCE) -> None:
        """Wait until everything is sent, at most `patience` seconds."""
        until = time.monotonic() + patience
        while self._waiting.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.02)
        if self._waiting.unfinished_tasks:
            log.error("canary: notify: %d messages have not left in %g s", self._waiting.unfinished_tasks, patience)

    def _work(self) -> None:
        while True:
            message = self._waiting.get()
            try:
                deliver(*message)
            except Exception as error:  # noqa: BLE001  # later messages must still leave
                log.error("canary: notify: %s", one_line(error))
            finally:
                self._waiting.task_done()


OUTBOX = Outbox()


def tell(about: set[str], make: Callable[[], Event]) -> None:
    """Tell the session's webhook an event if it wants to hear about one of these words, once per cause. Raises nothing:
    what the event is about stands even if the news fails."""
    try:
        webhook = asked()
        if webhook is None or webhook.about.isdisjoint(about):
            return
        event = make()
        if first(event.id):
            OUTBOX.put(webhook, event)
    except Exception as error:  # noqa: BLE001
        log.error("canary: notify: %s", one_line(error))


def deliver(webhook: Webhook, event: Event) -> None:
    """Send an event, with retries; one that is lost is logged."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util.retry import Retry

    body, headers = request(webhook, event)
    again = Retry(TRIES - 1, backoff_factor=FIRST_WAIT, status_forcelist=AGAIN, allowed_methods=None,
                  raise_on_status=False, respect_retry_after_header=False)  # fmt: skip
    try:
        with requests.Session() as session:
            session.mount(webhook.url, HTTPAdapter(max_retries=again))
            answer = session.post(webhook.url, data=body, headers=headers, timeout=SECONDS, allow_redirects=False)
        problem = "" if answer.status_code < 300 else f"answered {answer.status_code}"
    except requests.RequestException as error:
        problem = type(error).__name__  # its text contains the whole address, a secret
    if problem and first(f"lost {webhook.name}"):  # once per session
        log.error("canary: webhook %s: %s was not delivered: %s: %s", webhook.name, event.kind, webhook.place, problem)


def request(webhook: Webhook, event: Event) -> tuple[bytes, dict[str, str]]:
    """Body and headers, signed as MLflow signs its own webhooks: `v1,` and the base64 of HMAC-SHA256 over
    `id.timestamp.body`, as in mlflow/webhooks/delivery.py."""
    body = json.dumps(slack_body(event) if webhook.format == "slack" else mlflow_body(event), allow_nan=False)
    at = str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "X-MLflow-Delivery-Id": event.id,
        "X-MLflow-Timestamp": at,
        "User-Agent": "canary-mlflow",
    }
    if webhook.secret:
        digest = hmac.new(webhook.secret.encode(), f"{event.id}.{at}.{body}".encode(), hashlib.sha256).digest()
        headers["X-MLflow-Signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return body.encode(), headers


def mlflow_body(event: Event) -> dict[str, Any]:
    """An event in the form of MLflow's own webhooks: entity, action, timestamp, data."""
    entity, _, action = str(event.kind).partition(".")
    return {
        "entity": entity,
        "action": action,
        "id": event.id,
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "text": event.text,
        "data": dict(event.data),
    }


def slack_body(event: Event) -> dict[str, Any]:
    """An event for an incoming Slack webhook (api.slack.com/messaging/webhooks): plain text, in which nothing is a link
    or a mention; Slack's own markup is made of `&`, `<` and `>`."""
    text = event.text[:MOST].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {
        "text": text.replace("@", "@\u200b"),
        "blocks": [{"type": "section", "text": {"type": "plain_text", "text": event.text[:MOST], "emoji": False}}],
        "mrkdwn": False,
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }
