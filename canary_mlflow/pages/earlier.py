"""Earlier sessions of the same model to compare a session with: the previous one, and one from a week before."""

from __future__ import annotations

from collections.abc import Sequence

from canary_mlflow import tags
from canary_mlflow.pages.facts import read_facts
from canary_mlflow.pages.models import newest_sessions
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.stores.read_only import reading

MOST = 200  # versions searched
WEEK = 6.5 * 86_400_000  # ms; half a day less, because a nightly does not always begin at the same minute


def earlier_than(tracking: str, registry: str, session: RunFacts) -> Sequence[tuple[str, RunFacts]]:
    """(name, session) of each one found. Only sessions that left a version are found."""
    model = session.tags.get(tags.MODEL_NAME, "")
    if not model:
        return []
    with reading(registry) as connection:
        ids = newest_sessions(connection, model, MOST)
    with reading(tracking) as connection:
        found = read_facts(connection, ids, tags=(tags.VERDICT, tags.TIER), latest=()).values()
    tier = session.tags.get(tags.TIER, "")
    before = [
        one
        for one in found
        if not one.deleted and one.started < session.started and one.tags.get(tags.TIER, "") == tier
    ]
    before.sort(key=lambda one: -one.started)
    aged = [one for one in before[1:] if session.started - one.started >= WEEK]
    return [*(("the one before", one) for one in before[:1]), *(("a week before", one) for one in aged[:1])]
