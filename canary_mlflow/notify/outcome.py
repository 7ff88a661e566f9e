"""Tells a session's own webhook the verdict: the card, as text."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from canary_mlflow.errors import one_line
from canary_mlflow.notify.delivery import OUTBOX, deliver
from canary_mlflow.notify.events import of_decision
from canary_mlflow.notify.session import asked, first
from canary_mlflow.reports.card import card_of, card_to_dict
from canary_mlflow.shown import shown

if TYPE_CHECKING:
    from canary_mlflow.reports.card import Card
    from canary_mlflow.reports.decision import Decision

log = logging.getLogger(__name__)


def notify_outcome(decision: Decision, tier: str) -> None:
    """Tell the session's webhook a verdict that it asked for; the word NIGHTLY asks for every verdict of a nightly.
    Raises nothing: the verdict stands."""
    try:
        found = asked()
        if found is None or not ({decision.word.upper(), tier.upper()} & found[1]):
            return
        card = shown(card_of(decision))
        event = next(of_decision(decision))
        event = replace(event, text="\n".join(lines(card)), data={**event.data, "card": card_to_dict(card)})
        if first(event.id):
            OUTBOX.put(partial(deliver, found[0], event))
    except Exception as error:  # noqa: BLE001  # the verdict stands even if the news fails
        log.error("canary: notify: %s", one_line(error))


def lines(card: Card) -> Iterator[str]:
    """The lines of the card, without its drawings."""
    yield f"{card.heading} {card.title}"
    yield from card.paragraphs
    for row in card.rows:
        change = f"{row.change} {row.range}".rstrip()
        yield f"{row.word}: {row.metric} {row.baseline} → {row.candidate}, {change}, limit {row.limit}"
    if card.next:
        yield f"{card.label}: {card.next}"
    for link in card.links:
        yield link.address
