"""The track record of a version in the ledger, read before it is judged: its evidence, its tries, its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from canary_mlflow.registry.judging.champion_history import block_notes, history_notes
from canary_mlflow.registry.judging.records import session_of
from canary_mlflow.registry.sessions.evidence import Read, refuse_changed_evidence
from canary_mlflow.registry.sessions.tries import Tries, count
from canary_mlflow.registry.versions import find_version

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.ledger.rows import Row
    from canary_mlflow.registry.guard.promotion import Standing
    from canary_mlflow.registry.guard.store import GuardedStore
    from gates.model.policy import Policy
    from gates.model.records import Version
    from gates.model.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class TrackRecord:
    """`rows`: those about the model; none without a ledger. `unrecorded`: sessions of both sides whose runs at the end
    the ledger does not have yet. `aside`: a sentence about each run of the champion's code that does not count."""

    rows: Sequence[Row] = ()
    tries: Tries = field(default_factory=Tries)
    unrecorded: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()

    def noted(self, verdict: Verdict, version: str, policy: Policy) -> Verdict:
        """The verdict with notes on what a reader must know about the version's past, tries first."""
        tries = self.tries.notes(verdict.baseline_version, policy)
        past = (*block_notes(self.rows, int(version)), *history_notes(self.rows))
        return replace(verdict, attempt=self.tries.number, notes=(*tries, *self.aside, *verdict.notes, *past))


def track_record(
    client: MlflowClient,
    guard: GuardedStore | None,
    champion: Standing | None,
    found: ModelVersion,
    baseline: Version | None,
    candidate: Version,
) -> TrackRecord:
    """What the ledger has about a version against the champion. Raises UsageError if the runs of a side are not
    those that its session's rows name."""
    if guard is None or champion is None:
        return TrackRecord()
    rows = guard.ledger(candidate.model)
    number = None if baseline is None else baseline.version
    sides = [(found, Read(runs=candidate.runs, fresh=baseline.fresh if baseline else (), champion=number))]
    if baseline is not None and number is not None:
        sides.append((find_version(client, candidate.model, number), Read(runs=baseline.runs)))
    ended = [refuse_changed_evidence(client, guard, side, read, rows) for side, read in sides]
    return TrackRecord(
        rows=rows,
        tries=count(guard, rows, session_of(found), candidate, champion),
        unrecorded=tuple(str(session_of(side)) for (side, _), over in zip(sides, ended, strict=True) if not over),
    )
