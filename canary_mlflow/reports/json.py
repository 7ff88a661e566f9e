"""The report as one JSON object, for machines; the file `verdict.json` of a session."""

from __future__ import annotations

import json

from canary_mlflow.reports.decision import Decision, decision_to_dict
from canary_mlflow.reports.study import Study, study_to_dict


def render(decision: Decision) -> str:
    """Indented JSON without NaN, ready to print."""
    return json.dumps(decision_to_dict(decision), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def render_study(study: Study) -> str:
    """The same of a whole study, with the figures of its runs."""
    return json.dumps(study_to_dict(study), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
