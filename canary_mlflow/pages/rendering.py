"""Renders a template with values that are escaped as HTML, with control characters written out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from canary_mlflow.shown import finalized

if TYPE_CHECKING:
    from jinja2 import Environment

ENVIRONMENT = "CANARY_TEMPLATES"


def rendered(template: str, **values: Any) -> str:
    """The page. Flask's `render_template` only has the `finalize` of the whole app, which is MLflow's."""
    from flask import current_app

    made: Environment | None = current_app.config.get(ENVIRONMENT)
    if made is None:
        from jinja2 import ChoiceLoader, PackageLoader

        ours = PackageLoader("canary_mlflow.reports")  # for the verdict card, which the HTML report shows too
        loader = ChoiceLoader([one for one in (current_app.jinja_env.loader, ours) if one is not None])
        made = current_app.config[ENVIRONMENT] = current_app.jinja_env.overlay(finalize=finalized, loader=loader)
    current_app.update_template_context(values)
    return made.get_template(template).render(values)
