"""What webhooks can be told, as values: from a ledger row, a warning of the watch, or a failed audit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from canary_mlflow.notify.session import session_key
from canary_mlflow.notify.webhooks import Kind
from canary_mlflow.shown import shown

if TYPE_CHECKING:
    from canary_mlflow.ledger.rows import Row
    from canary_mlflow.reports.decision import Decision
    from gates.watch import WatchWarning

JUDGED = ("verdict", "bootstrap")  # kinds of rows
TOLD = 5  # findings of an audit that an event lists


@dataclass(frozen=True, kw_only=True)
class Event:
    """`cause`: where it comes from, the same each time it is told: a receiver that has seen it learns nothing new.

    `text`: the whole in a sentence. `model`: '' for none. Every text in it is neutral: written out, bounded.
    """

    kind: Kind
    cause: str
    text: str
    model: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The id of the delivery, derived from kind and cause."""
        return hashlib.sha256(f"{self.kind}\n{self.cause}".encode()).hexdigest()[:32]


def neutral(event: Event) -> Event:
    """The event with texts that are safe to show to anybody."""
    return shown(event)


def of_row(row: Row) -> Iterator[Event]:
    """The events of a row: the verdict that it records, and the champion that it makes."""
    facts = row.facts
    cause = f"ledger row {row.seq} {row.digest}"
    about = f"{row.model} version {row.version}"
    data = {
        "model": row.model,
        "version": str(row.version),
        "workspace": row.workspace,
        "alias": row.alias,
        "kind": str(row.kind),
        "word": row.word,
        "reason": str(facts.get("reason", "")),
        "actor": str(facts.get("actor", "")),
        "time": str(facts.get("time", "")),
        "baseline_version": facts.get("baseline_version"),
        "session": facts.get("session"),
        "ledger_row": row.seq,
        "ledger_digest": row.digest,
    }
    said = f"{row.word.upper()} {about}: {data['reason']}"
    if row.kind in JUDGED:
        yield neutral(Event(kind=Kind.VERDICT, cause=cause, text=said, model=row.model, data=data))
    if row.moves:
        kind = Kind.ROLLBACK if row.kind == "rollback" else Kind.PROMOTION
        before = f" (before: version {facts['baseline_version']})" if facts.get("baseline_version") else ""
        moved = f"{about} is {row.alias} now{before}, by {data['actor']}: {row.kind} {row.word}, {data['reason']}"
        yield neutral(Event(kind=kind, cause=cause, text=moved, model=row.model, data=data))


def of_decision(decision: Decision) -> Iterator[Event]:
    """The same for a verdict that no ledger records: of a session without a version, or a registry without a guard."""
    verdict, about = decision.verdict, f"{decision.model} version {decision.version}"
    if decision.version is None:
        about = f"{decision.model}, session {decision.session_id}"
    data = {
        "model": decision.model,
        "version": decision.version,
        "word": decision.word,
        "reason": verdict.reason,
        "baseline_version": decision.champion_before,
        "session": decision.session_id,
        "ledger_row": None,
    }
    cause = f"{about} {decision.session_id} {decision.word} {verdict.reason} {' '.join(verdict.candidate_runs)}"
    said = f"{decision.word.upper()} {about}: {verdict.reason}"
    yield neutral(Event(kind=Kind.VERDICT, cause=cause, text=said, model=decision.model, data=data))
    if decision.moves and decision.version is not None:
        moved = f"{about} is champion now: {verdict.reason}"
        yield neutral(Event(kind=Kind.PROMOTION, cause=cause, text=moved, model=decision.model, data=data))


def of_warning(warning: WatchWarning, run_id: str) -> Event:
    """The watch calls a run critical or stops it. One cause for each session (or run without one), rule and stream."""
    stopped = warning.level.name == "STOP"
    data = {"run_id": run_id, **warning.to_dict()}
    what = "stops" if stopped else "calls critical"
    said = f"The watch {what} run {run_id}: {warning.stream} at step {warning.step}: {warning.seen}"
    kind = Kind.STOP if stopped else Kind.CRITICAL
    cause = f"{session_key() or f'run {run_id}'} {warning.rule} {warning.stream}"
    return neutral(Event(kind=kind, cause=cause, text=said, data=data))


def of_audit(place: str, findings: Sequence[str], head: str) -> Event:
    """An audit found something; the same findings have the same cause."""
    data = {"store": place, "findings": list(findings[:TOLD]), "number": len(findings), "head": head}
    said = f"The audit of {place} has {len(findings)} findings, the first: {findings[0]}"
    cause = "\n".join([place, *sorted(findings)])
    return neutral(Event(kind=Kind.AUDIT_FAILED, cause=cause, text=said, data=data))


def trial() -> Event:
    """The event that `canary webhooks test` sends."""
    import time

    return Event(kind=Kind.TEST, cause=f"test {time.time_ns()}", text="A test from canary webhooks test")
