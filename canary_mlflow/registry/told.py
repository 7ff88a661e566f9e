"""What the ledger tells about a version before it is judged: its evidence, its tries, its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from canary_mlflow.registry.champion_history import block_notes, history_notes
from canary_mlflow.registry.records import session_of
from canary_mlflow.registry.session_evidence import Read, refuse_changed_evidence
from canary_mlflow.registry.tries import Tries, count
from canary_mlflow.registry.versions import find_version

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.ledger.rows import Row
    from canary_mlflow.registry.promotion import Standing
    from canary_mlflow.registry.store import GuardedStore
    from gates.model.policy import Policy
    from gates.model.records import Version
    from gates.model.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the ledger tells. `rows`: those about the model; none without a ledger. `untold`: sessions of both sides for
    which the ledger does not yet record the runs that they ended with."""

    rows: Sequence[Row] = ()
    tries: Tries = field(default_factory=Tries)
    untold: tuple[str, ...] = ()

    def noted(self, verdict: Verdict, version: str, policy: Policy) -> Verdict:
        """The verdict with notes on what a reader must know about the version's past, tries first."""
        tries = self.tries.notes(verdict.baseline_version, policy)
        past = (*block_notes(self.rows, int(version)), *history_notes(self.rows))
        return replace(verdict, attempt=self.tries.number, notes=(*tries, *verdict.notes, *past))


def told_of(
    client: MlflowClient,
    guard: GuardedStore | None,
    champion: Standing | None,
    found: ModelVersion,
    baseline: Version | None,
    candidate: Version,
) -> Told:
    """Everything that the ledger tells for a version against the champion. Raises UsageError if the runs of a side are
    not those that its session's rows name."""
    if guard is None or champion is None:
        return Told()
    rows = guard.ledger(candidate.model)
    number = None if baseline is None else baseline.version
    sides = [(found, Read(runs=candidate.runs, beside=baseline.fresh if baseline else (), champion=number))]
    if baseline is not None and number is not None:
        sides.append((find_version(client, candidate.model, number), Read(runs=baseline.runs)))
    ended = [refuse_changed_evidence(client, guard, side, read, rows) for side, read in sides]
    return Told(
        rows=rows,
        tries=count(guard, rows, session_of(found), candidate, champion),
        untold=tuple(str(session_of(side)) for (side, _), over in zip(sides, ended, strict=True) if not over),
    )
