"""The report as one JSON object, for machines; the file `verdict.json` of a session."""

from __future__ import annotations

from canary_mlflow.reports import changes, facts
from canary_mlflow.reports.decision import Decision, decision_to_dict
from canary_mlflow.reports.study import Study, study_to_dict
from canary_mlflow.shown import json_text


def render(decision: Decision) -> str:
    """Indented JSON without NaN, ready to print."""
    found = {**decision_to_dict(decision), "exact": facts.exact(decision), "changed": changes.changed(decision)}
    return json_text(found) + "\n"


def render_study(study: Study) -> str:
    """The same of a whole study, with the figures of its runs."""
    one = study.decision
    said = {"exact": "", "changed": ""} if one is None else {"exact": facts.exact(one), "changed": changes.changed(one)}
    return json_text({**study_to_dict(study), **said}) + "\n"
