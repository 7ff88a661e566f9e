"""`canary ci`: the report of a job's own session, as files and where people review a change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from canary_mlflow import tags
from canary_mlflow.ci import ci_job
from canary_mlflow.commands.shared import open_store, store_option
from canary_mlflow.edge import OUTSIDE
from canary_mlflow.errors import UsageError
from canary_mlflow.shown import echo, say
from canary_mlflow.tracking.stores.places import without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.github import Message
    from canary_mlflow.reports.study import Study

FILES = {"html": "report.html", "md": "report.md", "json": "report.json", "junit": "junit.xml"}
CI_CODES = """\b
Exit codes:
  0  PASS, bootstrap, or INCONCLUSIVE without --strict
  1  BLOCK
  2  wrong use, or no session of this job
  3  INCONCLUSIVE with --strict
  4  no verdict, or something outside failed; a comment or check that cannot be written is a warning
"""


@click.command(epilog=CI_CODES)
@click.argument("subject", required=False, metavar="[SESSION|VERSION]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("canary-report"),
    show_default=True,
    metavar="DIR",
    help="Where report.html, report.md, report.json and junit.xml go.",
)
@click.option("--strict", is_flag=True, help="INCONCLUSIVE also fails the job.")
@store_option
@click.pass_context
def ci(ctx: click.Context, subject: str | None, out: Path, strict: bool, tracking_uri: str | None) -> None:
    """Publish the report of this CI job's session.

    It always writes files. On GitHub it also writes the job's summary and outputs and, with GITHUB_TOKEN, one comment
    on the pull request, updated each time, and a check in which INCONCLUSIVE is neutral. Without an argument: the
    job's last session.
    """
    from canary_mlflow.analysis.formats import FORMATS, made, write
    from canary_mlflow.analysis.reading import study_of
    from canary_mlflow.analysis.subject import find_subject
    from canary_mlflow.github import place_of, publish

    place = place_of(os.environ)
    client = open_store(tracking_uri)
    chosen = subject or session_of_job(client)
    study = study_of(client, find_subject(client, chosen))
    for one in FORMATS:
        if one.option in FILES:
            write(made(one, study), out / FILES[one.option])
    message = message_of(study)
    if place is not None:
        outputs = {"verdict": message.word or "none", "session": chosen, "report": str(out)}
        for sentence in publish(place, message, os.environ.get("GITHUB_TOKEN", ""), outputs):
            say(f"warning: {sentence}")
    echo(message.title)
    echo(f"Report: {out / FILES['html']}")
    ctx.exit(exit_code(study, strict))


def session_of_job(client: MlflowClient) -> str:
    """The newest session that carries this job's tag. Raises UsageError."""
    from canary_mlflow.analysis.subject import SESSIONS

    job = ci_job(os.environ)
    if not job:
        raise UsageError(
            "no SUBJECT, and no GitHub or GitLab job around; expected a session or a version; canary ci SESSION"
        )
    experiments = [one.experiment_id for one in client.search_experiments()]
    ours = client.search_runs(experiments, tags.where(tags.CI_JOB, job), order_by=["attributes.start_time DESC"])
    found = [run for run in ours if run.data.tags.get(tags.ROLE) in SESSIONS]
    if not found:
        raise UsageError(
            f"job {job}: no session of it in {without_password(client.tracking_uri)}; expected one that `canary run` "
            "has recorded there in this job; run it first, with the same MLFLOW_TRACKING_URI"
        )
    return str(found[0].info.run_id)


def message_of(study: Study) -> Message:
    """The study as a comment and a check."""
    from canary_mlflow.github import Message
    from canary_mlflow.reports import markdown, view

    decision = study.decision
    title = (
        f"No verdict: {study.no_verdict}" if decision is None else f"{view.heading(decision)} {view.title(decision)}"
    )
    return Message(
        name=(decision.model if decision else "") or study.subject,
        word=decision.word if decision else "",
        title=title,
        text=markdown.render_study(study),
    )


def exit_code(study: Study, strict: bool) -> int:
    """The job's exit code."""
    if study.decision is None:
        return OUTSIDE
    code = study.decision.exit_code
    return 0 if code == 3 and not strict else code
