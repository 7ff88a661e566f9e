"""The report as one JSON object, for machines; the file `verdict.json` of a session."""

from __future__ import annotations

from typing import Any

from canary_mlflow.reports.decision import Decision, decision_to_dict
from canary_mlflow.reports.study import Study, study_to_dict
from canary_mlflow.reports.view import view_of
from canary_mlflow.schemas import stamped
from canary_mlflow.shown import json_text


def render(decision: Decision) -> str:
    """Indented JSON without NaN, ready to print."""
    return json_text(stamped("decision", {**decision_to_dict(decision), **with_card(decision)})) + "\n"


def render_study(study: Study) -> str:
    """The same for a whole study, with the figures of its runs."""
    return json_text(stamped("report", {**study_to_dict(study), **with_card(study.decision)})) + "\n"


def with_card(decision: Decision | None) -> dict[str, Any]:
    """The card, and two of its sentences under their own names; `card` is None if nothing was judged."""
    if decision is None:
        return {"exact": "", "changed": "", "card": None}
    view = view_of(decision)
    return {"exact": view.exact, "changed": view.changed, "card": view.card_to_dict()}
