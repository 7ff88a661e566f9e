"""The study of a session among its artifacts: a page and pictures that MLflow's UI opens."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow.analysis import ledger
from canary_mlflow.analysis.reading import study_of
from canary_mlflow.analysis.subject import Subject
from canary_mlflow.errors import one_line

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.reports.decision import Decision

log = logging.getLogger("canary_mlflow")


def publish_study(client: MlflowClient, decision: Decision) -> None:
    """`report.html` and `pictures/*.svg` of the session that was judged, next to its report.md.

    The verdict and its exit code already stand, so what cannot be drawn or stored here is a warning.
    """
    if decision.session_id is None or decision.dry_run:
        return
    try:
        log_study(client, decision, decision.session_id)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is no reason to take a verdict back
        log.warning("canary: session %s: no report.html: %s", decision.session_id, one_line(error))


def log_study(client: MlflowClient, decision: Decision, session: str) -> None:
    """Read the study, draw it and store it."""
    from canary_mlflow.reports import html, pictures

    study = study_of(client, subject_of(client, decision, session), every_chart=False)  # a second less
    study = replace(study, notes=[*study.notes, f"Pictures of every other series: canary report {session} --html FILE"])
    drawn = {chart.slug: pictures.svg(chart) for chart in study.charts if chart.curves}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "report.html").write_text(html.page(study, drawn), encoding="utf-8", errors="replace")
        for slug, svg in drawn.items():
            picture = Path(folder, "pictures", f"{slug}.svg")
            picture.parent.mkdir(exist_ok=True)
            picture.write_text(svg, encoding="utf-8", errors="replace")
        client.log_artifacts(session, folder)


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
