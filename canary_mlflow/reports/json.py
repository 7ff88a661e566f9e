"""The report as one JSON object, for machines; the file `verdict.json` of a session."""

from __future__ import annotations

from canary_mlflow.reports import changes
from canary_mlflow.reports.decision import Decision, decision_to_dict
from canary_mlflow.reports.study import Study, study_to_dict
from canary_mlflow.shown import json_text


def render(decision: Decision) -> str:
    """Indented JSON without NaN, ready to print."""
    found = {**decision_to_dict(decision), "changed": changes.changed(decision)}
    return json_text(found) + "\n"


def render_study(study: Study) -> str:
    """The same of a whole study, with the figures of its runs."""
    changed = "" if study.decision is None else changes.changed(study.decision)
    return json_text({**study_to_dict(study), "changed": changed}) + "\n"
