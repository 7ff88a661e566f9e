"""Which looks of its plan a version has had against which champion, and at which one it is.

They are kept in a tag of its session, which also has looks without a recorded verdict, and in the rows of its verdicts,
which no client can remove.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from canary_mlflow import tags
from canary_mlflow.errors import UsageError
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Version
from canary_mlflow.gates.model.sides import baseline_side, candidate_side, planned
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.versions import session_of
from canary_mlflow.tracking.stores.session import active_run, get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.ledger.chain import Row


LOOK = "look"
"""Key in a verdict's row: which look it was, in the tag's format."""


_SPELLED = re.compile(r"(\d+)(?:\.([0-9a-f]+))?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A look: how many runs, as a plan counts them, the version had, and a digest of both sides' evidence; '' if that
    was not noted, and only the number of runs identifies the look."""

    runs: int
    evidence: str = ""

    def __str__(self) -> str:
        return f"{self.runs}.{self.evidence}" if self.evidence else str(self.runs)

    def at(self, now: Taken) -> bool:
        """Whether it was a look at this evidence."""
        return self.runs == now.runs and self.evidence in ("", now.evidence)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a version is in its plan: the evidence `now`, and the looks `taken` against this champion, in order.
    `in_ledger`: those among them that the ledger knows."""

    now: Taken
    taken: tuple[Taken, ...]
    in_ledger: tuple[Taken, ...] = ()

    @property
    def seen(self) -> bool:
        """Whether this evidence was looked at."""
        return any(look.at(self.now) for look in self.taken)

    @property
    def before(self) -> list[int]:
        """The numbers of runs at the looks that count against a look now. A second look at the same evidence costs no
        more than the first. Once the ledger knows a look at this evidence, only the ledger tells which looks came
        later: in a tag, anybody could change the order."""
        first = next((at for at, look in enumerate(self.taken) if look.at(self.now)), len(self.taken))
        if not self.in_ledger:
            return [look.runs for look in self.taken[:first]]
        again = next((at for at, look in enumerate(self.in_ledger) if look.at(self.now)), len(self.in_ledger))
        later = self.in_ledger[again:]
        return [look.runs for look in self.taken if not look.at(self.now) and look not in later]


def evidence_of(run_ids: Iterable[str]) -> str:
    """A short digest of these runs, independent of their order."""
    return hashlib.sha256("\n".join(sorted(run_ids)).encode()).hexdigest()[:8]


def looks_taken(
    client: MlflowClient, session: str | None, champion: str | None, in_ledger: Iterable[Taken] = ()
) -> tuple[Taken, ...]:
    """The looks against this champion. `in_ledger`: those that the ledger knows, which replace the tag's looks without
    evidence."""
    in_ledger = list(in_ledger)
    known = {look.runs for look in in_ledger}
    kept = _by_champion(get_run(client, session)).get(str(champion), ()) if session else ()
    found = [look for look in kept if look.evidence or look.runs not in known]
    return (*found, *(look for look in in_ledger if look not in found))


def looks_in_ledger(rows: Iterable[Row], session: str | None, champion: str | None) -> Iterator[Taken]:
    """The looks against this champion in the ledger's rows about the model, in order."""
    for row in rows:
        facts = row.facts
        said = _SPELLED.fullmatch(str(facts.get(LOOK) or ""))
        if said and facts.get("session") == session and str(facts.get("baseline_version")) == str(champion):
            yield Taken(runs=int(said[1]), evidence=said[2] or "")


def note_look(client: MlflowClient, session: str, champion: str | None, look: Taken) -> None:
    """Record that this look was taken, before its verdict is shown, so that no look is free."""
    looks = _by_champion(active_run(client, session))
    beside = looks.get(str(champion), ())
    if not any(before.at(look) for before in beside):
        looks[str(champion)] = (*beside, look)
        client.set_tag(session, tags.LOOKS, "; ".join(f"{who}: {' '.join(map(str, of))}" for who, of in looks.items()))


def _by_champion(session: Run) -> dict[str, tuple[Taken, ...]]:
    found = {}
    for part in session.data.tags.get(tags.LOOKS, "").split(";"):
        champion, _, looks = part.partition(":")
        words = [match for look in looks.split() if (match := _SPELLED.fullmatch(look))]
        found[champion.strip()] = tuple(Taken(runs=int(word[1]), evidence=word[2] or "") for word in words)
    return {champion: looks for champion, looks in found.items() if looks}


def progress(
    client: MlflowClient,
    found: ModelVersion,
    baseline: Version | None,
    candidate: Version,
    rows: Iterable[Row] | None = None,
) -> Progress:
    """How far the version is in its plan against this champion. `rows`: the ledger's rows about the model, if already
    read."""
    side = candidate_side(candidate.runs)
    fresh = [run for run in (baseline.fresh if baseline else ()) if run.finished]
    evidence = (*side.evidence, *baseline_side(baseline.runs if baseline else (), side).evidence, *fresh)
    now = Taken(runs=planned(side.evidence), evidence=evidence_of(run.run_id for run in evidence))
    if rows is None:
        rows = registry_of(client).rows(candidate.model)
    session, champion = session_of(found), baseline.version if baseline else None
    in_ledger = tuple(looks_in_ledger(rows, session, champion))
    return Progress(now=now, taken=looks_taken(client, session, champion, in_ledger), in_ledger=in_ledger)


def at_look(
    client: MlflowClient,
    policy: Policy,
    found: ModelVersion,
    baseline: Version | None,
    candidate: Version,
    rows: Iterable[Row],
) -> tuple[int, float, Taken]:
    """The look that the number of a version's runs has reached, counted from 1; the share of the error levels that it
    may spend; and what to record about it. `rows`: the ledger's about the model, none without a ledger.

    Raises UsageError if the plan was already spent on other evidence.
    """
    is_at = progress(client, found, baseline, candidate, rows)
    number = policy.looks.reached(is_at.now.runs, is_at.before)
    share = policy.looks.share(number, is_at.before)
    if share <= 0:
        raise UsageError(
            f"version {found.version} of {found.name!r}: its plan of looks is spent (taken at "
            f"{', '.join(map(str, is_at.before))} runs; its evidence has changed since: {is_at.now.runs} runs); "
            "expected none after the last; judge it once more, with the whole error level: canary gate without --top-up"
        )
    return number, share, is_at.now
