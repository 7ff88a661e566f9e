"""What a session's webhook can be told, as values: a verdict, or a warning of the watch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from canary_mlflow.notify.session import session_key
from canary_mlflow.shown import shown

if TYPE_CHECKING:
    from canary_mlflow.gates.watch import WatchWarning
    from canary_mlflow.reports.decision import Decision
    from canary_mlflow.reports.view import View


class Kind(StrEnum):
    """The kinds of events."""

    VERDICT = "canary.verdict"
    CRITICAL = "canary.watch_critical"
    STOP = "canary.watch_stop"


@dataclass(frozen=True, kw_only=True)
class Event:
    """`cause`: where it comes from, the same each time it is told: a receiver that has seen it learns nothing new.

    `text`: what is said of it. Every text in it is neutral: written out, bounded.
    """

    kind: Kind
    cause: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The id of the delivery, derived from kind and cause."""
        return hashlib.sha256(f"{self.kind}\n{self.cause}".encode()).hexdigest()[:32]


def of_decision(decision: Decision) -> Event:
    """A verdict: its card, as text and as JSON."""
    from canary_mlflow.reports.view import view_of

    verdict, about = decision.verdict, f"{decision.model} version {decision.version}"
    if decision.version is None:
        about = f"{decision.model}, session {decision.session_id}"
    view = shown(view_of(decision))
    data = {
        "model": decision.model,
        "version": decision.version,
        "word": decision.word,
        "reason": verdict.reason,
        "baseline_version": decision.champion_before,
        "session": decision.session_id,
    }
    cause = f"{about} {decision.session_id} {decision.word} {verdict.reason} {' '.join(verdict.candidate_runs)}"
    return Event(
        kind=Kind.VERDICT,
        cause=shown(cause),
        text="\n".join(lines(view)),
        data={**shown(data), "card": view.card_to_dict()},
    )


def lines(view: View) -> Iterator[str]:
    """The lines of the card, without its drawings."""
    yield f"{view.heading} {view.title}"
    yield from view.paragraphs
    for row in view.deciding:
        yield f"{row.word}: {row.metric} {row.baseline} → {row.candidate}, {row.ranged}, limit {row.limit}"
    if view.next:
        yield f"{view.label}: {view.next}"
    for link in view.links:
        yield link.address


def of_warning(warning: WatchWarning, run_id: str) -> Event:
    """The watch calls a run critical or stops it. One cause for each session (or run without one), rule and stream."""
    stopped = warning.level.name == "STOP"
    data = {"run_id": run_id, **warning.to_dict()}
    what = "stops" if stopped else "calls critical"
    said = f"The watch {what} run {run_id}: {warning.stream} at step {warning.step}: {warning.seen}"
    kind = Kind.STOP if stopped else Kind.CRITICAL
    cause = f"{session_key() or f'run {run_id}'} {warning.rule} {warning.stream}"
    return shown(Event(kind=kind, cause=cause, text=said, data=data))
