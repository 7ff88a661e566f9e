"""Tells MLflow's own webhooks of new ledger rows: the tags and the alias that followed. Called after the transaction,
whose outcome nothing here can change."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import one_line

if TYPE_CHECKING:
    from canary_mlflow.ledger.chain import Row

log = logging.getLogger(__name__)


def announce(store: Any, rows: Sequence[Row], tags: Mapping[str, str]) -> None:
    """Send to MLflow's registry webhooks what MLflow's handlers of the same calls send (mlflow/server/handlers.py), for
    the rows of one transaction and the tags that were set on the version. MLflow looks up the receivers, then signs,
    sends and retries in its own threads. Raises nothing."""
    from mlflow.webhooks.delivery import deliver_webhook

    try:
        for event, payload in mlflow_events(store, rows, tags):
            deliver_webhook(event=event, payload=payload, store=store)
    except Exception as error:  # noqa: BLE001  # the champion has moved, even if the news fails
        log.error("canary: MLflow's webhooks: %s", one_line(error))


def mlflow_events(store: Any, rows: Sequence[Row], tags: Mapping[str, str]) -> Iterator[tuple[Any, Any]]:
    """(event, payload) of each tag, then of each alias."""
    from mlflow.entities.webhook import WebhookAction, WebhookEntity, WebhookEvent

    model, version = rows[-1].model, str(rows[-1].version)
    prompt = store.is_prompt(model)
    tag = WebhookEntity.PROMPT_VERSION_TAG if prompt else WebhookEntity.MODEL_VERSION_TAG
    alias = WebhookEntity.PROMPT_ALIAS if prompt else WebhookEntity.MODEL_VERSION_ALIAS
    for key, value in tags.items():
        yield WebhookEvent(tag, WebhookAction.SET), {"name": model, "version": version, "key": key, "value": value}
    for row in rows:
        if row.moves:
            yield WebhookEvent(alias, WebhookAction.CREATED), {"name": model, "alias": row.alias, "version": version}
