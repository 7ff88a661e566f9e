"""An event as the body and headers of a request, signed as MLflow signs its own webhooks."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from datetime import UTC, datetime
from typing import Any

from canary_mlflow.notify.events import Event
from canary_mlflow.notify.webhooks import Webhook

MOST = 2900  # characters; Slack accepts 3,000 in a section


def request(webhook: Webhook, event: Event) -> tuple[bytes, dict[str, str]]:
    """Body and headers. Signature: `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`, as in
    mlflow/webhooks/delivery.py."""
    value = slack_body(event) if webhook.format == "slack" else mlflow_body(event)
    body = json.dumps(value, allow_nan=False)
    at = str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "X-MLflow-Delivery-Id": event.id,
        "X-MLflow-Timestamp": at,
        "User-Agent": "canary-mlflow",
    }
    if webhook.secret:
        headers["X-MLflow-Signature"] = signature(webhook.secret, event.id, at, body)
    return body.encode(), headers


def signature(secret: str, delivery: str, at: str, body: str) -> str:
    """The signature of one request."""
    digest = hmac.new(secret.encode(), f"{delivery}.{at}.{body}".encode(), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


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
