"""The page of a ledger row, or of the verdict on a session: the judgement with its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any

from canary_mlflow.analysis.ledger import decision_of
from canary_mlflow.errors import NoSuchRun, NoSuchVersion, Refused
from canary_mlflow.files.documents import read_json
from canary_mlflow.files.source import MAX_VERDICT
from canary_mlflow.gates.model.fields import PolicyError
from canary_mlflow.gates.model.items import Flip
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.rules import Role
from canary_mlflow.gates.model.verdict import Verdict
from canary_mlflow.gates.parser import parse_policy
from canary_mlflow.ledger import table
from canary_mlflow.ledger.chain import FIRST, ReadRow, Row, checked
from canary_mlflow.ledger.writing import keys_in
from canary_mlflow.mlflow_internals import active_workspace
from canary_mlflow.pages.models import Entry, evaluated, read_champions, session_of, versions_of
from canary_mlflow.pages.requests import (
    argument,
    folder_of,
    readers,
    registry_database,
    rendered,
    runs_database,
    whole_number,
)
from canary_mlflow.pages.series import read_series
from canary_mlflow.registry.policies.in_force import said_by
from canary_mlflow.registry.versions import CHAMPION
from canary_mlflow.reports.decision import Decision, RunWarning, decision_from_dict
from canary_mlflow.reports.forest import Dot, dots_of
from canary_mlflow.reports.rows import WORDS
from canary_mlflow.reports.view import view_of
from canary_mlflow.tracking.reading.database import find_run, read_facts
from canary_mlflow.tracking.reading.facts import RunFacts, count, whole
from canary_mlflow.tracking.stores.read_only import has_ledger


@dataclass(frozen=True)
class VerdictPage:
    """A judgement or an act. `decision` None for an act by hand; `row` None for a session that left no version.

    `gone`: runs of the evidence that the store no longer holds. `holds`: who is champion now. `session`, `baseline`:
    the session that was judged and the one that it was judged against, '' if the store no longer has it.
    """

    model: str
    facts: Mapping[str, Any]
    decision: Decision | None
    _: KW_ONLY
    row: Row | None = None
    signature: ReadRow | None = None
    holds: int | None = None
    dots: Mapping[str, Sequence[Dot]] = field(default_factory=dict)
    runs: Mapping[str, RunFacts] = field(default_factory=dict)
    gone: Sequence[str] = ()
    session: str = ""
    baseline: str = ""

    @property
    def evals(self) -> Sequence[Entry]:
        """The rows on the evaluations of its version."""
        return evaluated(self.model, self.row.version if self.row else None)


def read_ledger_page(seq: int) -> VerdictPage:
    """The page of a ledger row. Raises NoSuchVersion if there is no such row, and Refused."""
    connection = registry_database()
    row = table.row_at(connection, seq) if has_ledger(connection) else None
    if row is None or row.workspace not in ("", active_workspace()):
        raise NoSuchVersion(f"row {seq}: not in the ledger of this registry; expected one; see the model's history")
    if not readers().model(row.model):
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
    return completed(VerdictPage(row.model, facts, decision, row=row, signature=signature, holds=holds))


def read_session_page(session_id: str) -> VerdictPage:
    """The verdict on a session: the ledger's row about its version, else its verdict.json, the only record of a session
    that left no version. Raises NoSuchRun, Refused."""
    session = find_run(runs_database(), session_id)
    if rows := rows_about(session_id):
        found = read_ledger_page(rows[-1].seq)
    else:
        facts, decision = verdict_file(session)
        found = completed(VerdictPage(decision.model, facts, replace(decision, session_id=session_id)))
    if not readers().experiment(session.experiment):
        raise Refused("session: in an experiment that you may not read")
    return found


def judged(session: RunFacts) -> tuple[int | None, Decision] | None:
    """(the number of its ledger row or None, the decision) of a session; None if no verdict can be read."""
    if rows := rows_about(session.run_id):
        found = ((row.seq, decision_of(row, said_by(row))) for row in reversed(rows))
        return next(((seq, decision) for seq, decision in found if decision is not None), None)
    try:
        _, decision = verdict_file(session)
    except NoSuchRun:
        return None
    return None, replace(decision, session_id=session.run_id)


def rows_about(session_id: str) -> list[Row]:
    """The ledger's rows on the verdicts and acts about the version that a session left, in order. The session's own
    files may say anything: who may edit it can write them."""
    connection = registry_database()
    found = versions_of(connection, [session_id]).get(session_id)
    if found is None or not has_ledger(connection):
        return []
    model, version, _ = found
    rows = table.read(connection, model, active_workspace(), version=version)
    return [row for row in rows if row.alias == CHAMPION]


def verdict_file(session: RunFacts) -> tuple[dict[str, Any], Decision]:
    """verdict.json from the session's artifacts, and the decision in it. Raises NoSuchRun if none can be read."""
    folder = folder_of(session)
    try:
        if folder is None:
            raise OSError
        found: Any = read_json(folder / "verdict.json", MAX_VERDICT, within=folder)
        return found, decision_from_dict(found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise NoSuchRun(
            f"session {session.run_id}: no verdict.json among its artifacts that this server can read; expected one "
            "that the gate left; open the run in MLflow"
        ) from error


def completed(page: VerdictPage) -> VerdictPage:
    """The page with what the runs add: dots, names and warnings."""
    decision = page.decision
    if decision is None:
        return page
    before = count(decision.champion_before or "")
    baseline = session_of(registry_database(), page.model, before) if before else ""
    ids = [*decision.verdict.baseline_runs, *decision.verdict.candidate_runs]
    sides = [one for one in (decision.session_id, baseline) if one]
    found = read_facts(runs_database(), [*ids, *sides])
    alive = {key: one for key, one in found.items() if not one.deleted}
    runs = {key: alive[key] for key in ids if key in alive}
    decision = warned(decision, runs)
    if not decision.broken and decision.session_id in alive:
        decision = replace(decision, broken=broken_beside(alive[decision.session_id], decision))
    return replace(
        page,
        decision=decision,
        dots=read_dots(decision, runs),
        runs=runs,
        gone=[run_id for run_id in ids if run_id not in runs],
        session=decision.session_id if decision.session_id in alive else "",
        baseline=baseline if baseline in alive else "",
    )


def broken_beside(session: RunFacts, decision: Decision) -> Mapping[str, tuple[Flip, ...]]:
    """The broken items that the gate left with this verdict in the session's verdict.json; the ledger has no texts."""
    try:
        _, kept = verdict_file(session)
    except NoSuchRun:
        return {}
    return kept.broken if kept.verdict == decision.verdict else {}


def read_dots(decision: Decision, runs: Mapping[str, RunFacts]) -> dict[str, list[Dot]]:
    """For each judged metric, a dot for each run that still exists."""
    policy = policy_of(decision.verdict)
    checks = [check for check in decision.verdict.checks if check.role is not Role.HARD]
    margins = {check.metric: check.evidence.margin for check in checks if check.evidence}
    rules = [rule for rule in policy.rules if rule.name in margins] if policy else []
    names = {rule.metric for rule in rules}
    if "tokens_per_second" in names:
        names |= {"tokens", "step_time"}  # the rate is made of these
    series = read_series(runs_database(), list(runs), sorted(names)) if names else {}
    made = {run_id: Run(run_id=run_id, seed=whole(runs[run_id].seed), series=found) for run_id, found in series.items()}
    verdict = decision.verdict
    left, right = ([made[one] for one in ids if one in made] for ids in (verdict.baseline_runs, verdict.candidate_runs))
    found = ((rule, margins[rule.name]) for rule in rules)
    return {rule.name: dots_of(policy, rule, left, right, margin) for rule, margin in found if policy and margin}


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


# ---- route -----------------------------------------------------------------------------------------------------------


def verdict() -> str:
    """A ledger row (?row=), or the verdict on a session (?session=), which has no row if it left no version."""
    row = whole_number("row")
    page = read_ledger_page(row) if row is not None else read_session_page(argument("session", 64))
    found = page.decision
    view = None if found is None else view_of(found, then=page.row is not None)
    return rendered("canary/verdict.html", page=page, decision=found, view=view, words=WORDS)
