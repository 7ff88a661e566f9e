"""Which looks of its plan a version has been given beside which champion: a tag of its session."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from canary_mlflow.tracking.session import get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient

LOOKS_TAG = "canary.looks"
"""By champion and in their order, the number of the version's runs at each look and which evidence it was:
`4: 1.9f86d081 3.60303ae2; 5: 3.fd61a03a`."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A look: how many runs the version had of those that a plan counts, and which evidence of both sides it was."""

    runs: int
    evidence: str

    def __str__(self) -> str:
        return f"{self.runs}.{self.evidence}"


def evidence_of(run_ids: Iterable[str]) -> str:
    """A short name of these runs, whatever their order."""
    return hashlib.sha256("\n".join(sorted(run_ids)).encode()).hexdigest()[:8]


def looks_taken(client: MlflowClient, session: str | None, champion: str | None) -> tuple[Taken, ...]:
    """The looks beside this champion, the first of them first."""
    return _by_champion(client, session).get(str(champion), ()) if session else ()


def before(taken: Iterable[Taken], now: Taken) -> list[int]:
    """The numbers of runs at the looks that count against this one: a second look at the same evidence costs nothing
    that its first did not."""
    looks = list(taken)
    return [look.runs for look in (looks[: looks.index(now)] if now in looks else looks)]


def note_look(client: MlflowClient, session: str, champion: str | None, look: Taken) -> None:
    """Keep that this look was taken; before its verdict is told, so that none comes for nothing."""
    looks = _by_champion(client, session)
    beside = looks.get(str(champion), ())
    if look not in beside:
        looks[str(champion)] = (*beside, look)
        client.set_tag(session, LOOKS_TAG, "; ".join(f"{who}: {' '.join(map(str, of))}" for who, of in looks.items()))


def _by_champion(client: MlflowClient, session: str) -> dict[str, tuple[Taken, ...]]:
    tag = get_run(client, session).data.tags.get(LOOKS_TAG, "")
    found = {}
    for part in tag.split(";"):
        champion, _, looks = part.partition(":")
        words = [look.partition(".") for look in looks.split()]
        found[champion.strip()] = tuple(Taken(runs=int(a), evidence=b) for a, _, b in words if a.isdigit())
    return {champion: looks for champion, looks in found.items() if looks}
