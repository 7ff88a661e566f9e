"""A study of a subject: its runs in one bulk read, in pictures and in numbers; a session's is put among its
artifacts, as a page that MLflow's UI opens.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow.exceptions import MlflowException

from canary_mlflow.analysis import figures, ledger
from canary_mlflow.analysis.subject import Subject
from canary_mlflow.errors import CanaryError, NoSuchRun, StoreError, one_line
from canary_mlflow.gates.model.records import Run
from canary_mlflow.registry.artifacts import find_profile
from canary_mlflow.reports import charts, instabilities
from canary_mlflow.reports.charts import Mark
from canary_mlflow.reports.decision import Decision, RunWarning
from canary_mlflow.reports.layer_drift import moved
from canary_mlflow.reports.study import RunPart, Study
from canary_mlflow.tags import ALGO, MODEL, RUN_NAME, SEED, TIER
from canary_mlflow.tracking.describing.compact import expanded, params_in
from canary_mlflow.tracking.reading.facts import warnings_in
from canary_mlflow.tracking.reading.histories import read_found
from canary_mlflow.tracking.reading.profile import Profiled
from canary_mlflow.tracking.stores.places import without_password
from canary_mlflow.tracking.stores.session import get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

    from canary_mlflow.reports.decision import Decision


def publish_study(client: MlflowClient, decision: Decision) -> None:
    """`report.html` of the session that was judged, next to its report.md.

    The verdict and its exit code already stand, so what cannot be drawn or stored here is a warning.
    """
    if decision.session_id is None or decision.dry_run:
        return
    try:
        log_study(client, decision, decision.session_id)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is no reason to take a verdict back
        log.warning("canary: session %s: no report.html: %s", decision.session_id, one_line(error))


def log_study(client: MlflowClient, decision: Decision, session: str) -> None:
    """Read the study, draw it and store its page."""
    from canary_mlflow.reports import html

    study = study_of(client, subject_of(client, decision, session), every_chart=False)  # a second less
    study = replace(study, notes=[*study.notes, f"Pictures of every other series: canary report {session} --html FILE"])
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        page.write_text(html.render(study), encoding="utf-8", errors="replace")
        client.log_artifact(session, page)


def subject_of(client: MlflowClient, decision: Decision, session: str) -> Subject:
    """The session with the decision that was just made."""
    version = decision.version or ""
    rows, said = ledger.rows_of(client, decision.model, version) if version else ([], Subject.ledger_said)
    return Subject(
        label=f"session {session}",
        kind="session",
        decision=decision,
        origin="the gate's, on this session",
        candidate=decision.verdict.candidate_runs,
        baseline=decision.verdict.baseline_runs,
        model=decision.model,
        version=version,
        rows=rows,
        ledger_said=said,
    )


log = logging.getLogger("canary_mlflow")

OF_RUN = ("run_id", "seed", "completed", "failure", "failure_reason", "learned", "learned_reason", "workload",
          "hardware", "environment", "facts")  # fmt: skip
"""What a report takes from a run as the judge reads it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Recorded:
    """A run with what MLflow tells about it. `called`: its name among the runs of its side."""

    called: str
    run: Run
    entity: MlflowRun

    @property
    def tags(self) -> Mapping[str, str]:
        """Its tags."""
        return expanded(self.entity.data.tags)


def study_of(client: MlflowClient, subject: Subject, *, every_chart: bool = True) -> Study:
    """Read everything that a report shows; without `every_chart`, only the panels' charts. Raises StoreError."""
    candidate, gone = recorded(client, subject.candidate, subject.known)
    baseline, lost = recorded(client, subject.baseline, subject.known)
    runs = [one.run for one in candidate]
    band, said = band_of([one.run for one in baseline], runs, subject)
    found = [each for one in candidate for each in instabilities.instabilities_of(one.called, one.run, one.tags)]
    marks = [Mark(step=one.step, stream=one.stream, level=one.level) for one in found if one.step]
    return Study(
        subject=subject.label,
        kind=subject.kind,
        decision=with_warnings(subject.decision, candidate),
        origin=subject.origin,
        no_verdict=subject.no_verdict,
        store=without_password(client.tracking_uri),
        runs=[*(part(one, "candidate") for one in candidate), *(part(one, "baseline") for one in baseline)],
        gone=[*gone, *lost],
        charts=charts.charts_of(
            [(one.called, one.run) for one in candidate], band, marks, params_of(candidate), rest=every_chart
        ),
        band=said,
        correlation=figures.correlation_of(runs),
        instabilities=found,
        performance=figures.performance_of([one.run for one in baseline], runs),
        layer_drift=moved([one.run for one in baseline], runs),
        memory=figures.memory_of(client, candidate[0].tags if candidate else {}),
        profiled=profile_of(client, subject.candidate, subject.baseline, gone=[*gone, *lost]),
        ledger=ledger.shown(subject.rows),
        ledger_said=subject.ledger_said,
        notes=[*subject.notes, *notes_of(candidate)],
    )


def profile_of(
    client: MlflowClient, candidate: Sequence[str], baseline: Sequence[str], gone: Sequence[str]
) -> Profiled | None:
    """What `profile=true` or `canary profile` found; None if nobody asked, or if it can no longer be read."""
    sides = [[run for run in side if run not in gone] for side in (candidate, baseline)]
    try:
        return find_profile(client, *sides)
    except (CanaryError, MlflowException, OSError) as error:
        log.warning("canary: no profile is shown: %s", one_line(error))
        return None


def recorded(client: MlflowClient, ids: Sequence[str], known: Mapping[str, Run]) -> tuple[list[Recorded], list[str]]:
    """The runs that are still there, by their seeds, and the ids of those that are not."""
    entities, gone = {}, []
    for run_id in ids:
        try:
            entity = get_run(client, run_id)
        except NoSuchRun:
            entity = None
        if entity is None or entity.info.lifecycle_stage != "active":
            gone.append(run_id)
        else:
            entities[run_id] = entity
    new = read_found(client, [one for run_id, one in entities.items() if run_id not in known])
    names = names_of(entities)
    found = {**known, **{run.run_id: run for run in new}}
    made = [Recorded(called=names[one], run=found[one], entity=entities[one]) for one in entities]
    return sorted(made, key=lambda one: (one.run.seed is None, one.run.seed or 0)), gone


def names_of(entities: Mapping[str, MlflowRun]) -> dict[str, str]:
    """`seed 3`, else the run's name, with the beginning of its id if two would have the same name."""
    names = {run_id: name_of(run) for run_id, run in entities.items()}
    often = Counter(names.values())
    return {run_id: name if often[name] == 1 else f"{name} ({run_id[:8]})" for run_id, name in names.items()}


def name_of(run: MlflowRun) -> str:
    """What to call a run."""
    tags = run.data.tags
    return f"seed {tags[SEED]}" if tags.get(SEED) else tags.get(RUN_NAME) or run.info.run_id[:8]


def part(one: Recorded, side: str) -> RunPart:
    """A run as reports show it."""
    run, tags = one.run, one.tags
    last = max((int(series.steps[-1]) for series in run.series.values() if len(series.steps)), default=0)
    return RunPart(
        run=one.called,
        side=side,
        name=tags.get(RUN_NAME, ""),
        status=one.entity.info.status,
        algo=tags.get(ALGO, ""),
        model=tags.get(MODEL, ""),
        tier=tags.get(TIER, ""),
        steps=run.last_step or last,
        metrics=figures.summaries(run),
        **{name: getattr(run, name) for name in OF_RUN},
    )


def band_of(baseline: Sequence[Run], candidate: Sequence[Run], subject: Subject) -> tuple[list[Run], str]:
    """The baseline's runs that did the same work as the candidate's, and a sentence about them or their absence."""
    if not baseline:
        why = "its runs are gone" if subject.baseline else "there is no other version to compare these runs with"
        return [], f"No band of a champion: {why if subject.model else 'these runs belong to no registered model'}."
    work = [run.workload for run in candidate]
    alike = [run for run in baseline if run.completed and run.workload in work]
    if not alike:
        return [], "No band of the champion: its runs did other work, or broke off."
    return alike, f"Grey: the range of {len(alike)} {'run' if len(alike) == 1 else 'runs'} of the baseline."


def with_warnings(decision: Decision | None, runs: Sequence[Recorded]) -> Decision | None:
    """The decision with what the watch said of the runs; an unreadable tag says nothing here."""
    if decision is None:
        return None
    found = []
    for one in runs:
        try:
            found += [RunWarning(run=one.called, warning=warning) for warning in warnings_in(one.tags)]
        except StoreError:
            continue
    return replace(decision, warnings=tuple(found))


def params_of(runs: Sequence[Recorded]) -> Mapping[str, str]:
    """The configuration, which the session's runs share."""
    return {**params_in(runs[0].tags), **runs[0].entity.data.params} if runs else {}


def notes_of(runs: Sequence[Recorded]) -> list[str]:
    """Sentences on what is missing."""
    if not runs:
        return ["No runs: none of this subject's runs is in the store."]
    notes = [f"{one.called}: no step was recorded." for one in runs if not one.run.series]
    missing = charts.missing_from([one.run for one in runs])
    if missing and len(notes) < len(runs):
        notes.append(f"Not recorded: {', '.join(missing)}.")
    for one in runs:
        try:
            listed = len(warnings_in(one.tags))
        except StoreError:
            continue
        if more := instabilities.unlisted(one.called, one.tags, listed):
            notes.append(more)
    return notes
