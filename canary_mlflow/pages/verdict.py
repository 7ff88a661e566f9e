"""The page of a ledger row, or of the verdict on a session: the judgement with its evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from canary_mlflow.analysis.ledger import decision_of
from canary_mlflow.errors import NoSuchRun, NoSuchVersion, Refused
from canary_mlflow.files.documents import read_json
from canary_mlflow.files.limits import MAX_VERDICT
from canary_mlflow.ledger import table
from canary_mlflow.ledger.policy_rows import said_by
from canary_mlflow.ledger.rows import FIRST, ReadRow, Row, checked
from canary_mlflow.ledger.writing import keys_in
from canary_mlflow.pages.curves import read_series
from canary_mlflow.pages.facts import find_run, read_facts
from canary_mlflow.pages.forest import ForestRow, forest
from canary_mlflow.pages.models import read_champions, session_of, versions_of
from canary_mlflow.registry.guard.server_files import behind_server
from canary_mlflow.registry.versions import CHAMPION
from canary_mlflow.registry.workspaces import active_workspace
from canary_mlflow.reports.decision import Decision, RunWarning, decision_from_dict
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.reading.numbers import count, whole
from canary_mlflow.tracking.stores.read_only import has_ledger, reading
from gates.model.fields import PolicyError
from gates.model.policy import Policy
from gates.model.records import Run
from gates.model.rules import Role
from gates.model.verdict import Outcome, Verdict
from gates.parser import parse_policy
from gates.watch.warning import Level


@dataclass(frozen=True, kw_only=True)
class VerdictPage:
    """A judgement or an act. `decision` None for an act by hand; `row` None for a session that left no version.

    `gone`: runs of the evidence that the store no longer holds. `holds`: who is champion now. `session`, `baseline`:
    the session that was judged and the one that it was judged against, '' if the store no longer has it.
    """

    model: str
    row: Row | None
    facts: Mapping[str, Any]
    decision: Decision | None
    signature: ReadRow | None
    rows: Sequence[ForestRow]
    runs: Mapping[str, RunFacts]
    gone: Sequence[str]
    holds: int | None
    session: str = ""
    baseline: str = ""


def read_ledger_page(tracking: str, registry: str, seq: int, may_read_model: Callable[[str], bool]) -> VerdictPage:
    """The page of a ledger row. Raises NoSuchVersion if there is no such row, Refused, StoreError."""
    with reading(registry) as connection:
        row = table.row_at(connection, seq) if has_ledger(connection) else None
        if row is None or row.workspace not in ("", active_workspace()):
            raise NoSuchVersion(f"row {seq}: not in the ledger of this registry; expected one; see the model's history")
        if not may_read_model(row.model):
            raise Refused(f"row {seq}: about a model that you may not read")
        before = table.row_at(connection, seq - 1) if seq > 1 else None
        holds = dict(read_champions(connection, row.model)).get(row.model)
        previous = FIRST if seq == 1 else None if before is None else before.digest
        (signature,) = checked([(row, previous)], partial(keys_in, connection))
    if previous is None:
        missing = f"row {seq - 1}, which it follows, is missing"
        signature = replace(signature, problems=[*signature.problems, missing])
    facts = said_by(row)
    decision = decision_of(row, facts)
    return complete(tracking, registry, row.model, row, facts, decision, signature, holds)


def read_session_page(
    tracking: str, registry: str, session_id: str, may_read_model: Callable[[str], bool]
) -> VerdictPage:
    """The verdict on a session: the ledger's row about its version, else its verdict.json, the only record of a session
    that left no version. Raises NoSuchRun, Refused, StoreError."""
    with reading(tracking) as connection:
        session = find_run(connection, session_id)
    if rows := rows_about(registry, session_id):
        return read_ledger_page(tracking, registry, rows[-1].seq, may_read_model)
    found, decision = verdict_file(session)
    own = replace(decision, session_id=session_id)
    return complete(tracking, registry, decision.model, None, found, own, None, None)


def judged(registry: str, session: RunFacts) -> tuple[int | None, Decision] | None:
    """(the number of its ledger row or None, the decision) of a session; None if no verdict can be read."""
    if rows := rows_about(registry, session.run_id):
        found = ((row.seq, decision_of(row, said_by(row))) for row in reversed(rows))
        return next(((seq, decision) for seq, decision in found if decision is not None), None)
    try:
        _, decision = verdict_file(session)
    except NoSuchRun:
        return None
    return None, replace(decision, session_id=session.run_id)


def decided_by(decision: Decision) -> list[str]:
    """The series of what blocks, or leaves a verdict open, the first reason first; of a hard check those that the watch
    warned of, and the loss. Empty for a PASS."""
    verdict, found = decision.verdict, dict[str, None]()
    warned = [one.warning.stream for one in decision.warnings if one.warning.level >= Level.CRITICAL]
    for check in verdict.checks if verdict.outcome is not Outcome.PASS else ():
        if check.outcome.value == verdict.outcome.value:
            rule = (verdict.policy.get("rules") or {}).get(check.metric, {})
            of_rule = [str(rule.get("metric", check.metric))]
            found |= dict.fromkeys([*warned, "loss"] if check.role is Role.HARD else of_rule)
    return list(found)


def rows_about(registry: str, session_id: str) -> list[Row]:
    """The ledger's rows on the verdicts and acts about the version that a session left, in order. The session's own
    files may say anything: who may edit it can write them."""
    with reading(registry) as connection:
        found = versions_of(connection, [session_id]).get(session_id)
        if found is None or not has_ledger(connection):
            return []
        model, version, _ = found
        rows = table.read(connection, model, active_workspace(), version=version)
        return [row for row in rows if row.alias == CHAMPION]


def verdict_file(session: RunFacts) -> tuple[dict[str, Any], Decision]:
    """verdict.json from the session's artifacts, and the decision in it. Raises NoSuchRun if none can be read."""
    from mlflow.utils.file_utils import local_file_uri_to_path
    from mlflow.utils.uri import is_local_uri

    place = behind_server(session.artifacts)
    try:
        if not is_local_uri(place):
            raise OSError
        folder = Path(local_file_uri_to_path(place))
        found: Any = read_json(folder / "verdict.json", MAX_VERDICT, within=folder)
        return found, decision_from_dict(found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise NoSuchRun(
            f"session {session.run_id}: no verdict.json among its artifacts that this server can read; expected one "
            "that the gate left; open the run in MLflow"
        ) from error


def complete(
    tracking: str,
    registry: str,
    model: str,
    row: Row | None,
    facts: Mapping[str, Any],
    decision: Decision | None,
    signature: ReadRow | None,
    holds: int | None,
) -> VerdictPage:
    """The page with what the runs add: dots, names and warnings."""
    ids = [] if decision is None else [*decision.verdict.baseline_runs, *decision.verdict.candidate_runs]
    rows: Sequence[ForestRow] = ()
    runs: dict[str, RunFacts] = {}
    session = baseline = ""
    if decision is not None:
        with reading(registry) as connection:
            before = count(decision.champion_before or "")
            baseline = session_of(connection, model, before) if before else ""
        with reading(tracking) as connection:
            both = read_facts(connection, [one for one in (decision.session_id, baseline) if one], tags=(), latest=())
            session, baseline = (
                one if one in both and not both[one].deleted else "" for one in (decision.session_id or "", baseline)
            )
            runs = {key: one for key, one in read_facts(connection, ids, latest=()).items() if not one.deleted}
            decision = warned(decision, runs)
            rows = forest_rows(connection, decision, runs)
    return VerdictPage(
        model=model,
        row=row,
        facts=facts,
        decision=decision,
        signature=signature,
        rows=rows,
        runs=runs,
        gone=[run_id for run_id in ids if run_id not in runs],
        holds=holds,
        session=session,
        baseline=baseline,
    )


def forest_rows(connection: sa.Connection, decision: Decision, runs: Mapping[str, RunFacts]) -> list[ForestRow]:
    """The checks with dots for the runs that still exist."""
    policy = policy_of(decision.verdict)
    judged = {check.metric for check in decision.verdict.checks if check.role is not Role.HARD and check.evidence}
    rules = [rule for rule in policy.rules if rule.name in judged] if policy else []
    names = {rule.metric for rule in rules}
    if "tokens_per_second" in names:
        names |= {"tokens", "step_time"}  # the rate is made of these
    series = read_series(connection, list(runs), sorted(names)) if names else {}
    made = {run_id: Run(run_id=run_id, seed=whole(runs[run_id].seed), series=found) for run_id, found in series.items()}
    verdict = decision.verdict
    left, right = ([made[one] for one in ids if one in made] for ids in (verdict.baseline_runs, verdict.candidate_runs))
    return forest(decision, policy, left, right)


def policy_of(verdict: Verdict) -> Policy | None:
    """The policy of a verdict; None if an older version wrote it in another form."""
    try:
        return parse_policy(verdict.policy)
    except PolicyError:
        return None


def warned(decision: Decision, runs: Mapping[str, RunFacts]) -> Decision:
    """The decision with the watch's warnings about the candidate's runs."""
    found = [runs[run_id] for run_id in decision.verdict.candidate_runs if run_id in runs]
    return replace(
        decision, warnings=tuple(RunWarning(run=run.short, warning=one) for run in found for one in run.warnings)
    )
