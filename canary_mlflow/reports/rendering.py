"""The templates of reports, with the functions that they may call; whatever is put into one is escaped."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.gates.model.wording import figure
from canary_mlflow.reports import formatting
from canary_mlflow.reports.forest import in_letters, x_of
from canary_mlflow.reports.layer_drift import share
from canary_mlflow.reports.rows import WORDS

if TYPE_CHECKING:
    from jinja2 import Environment


def filled(name: str, escaped: Callable[[Any], Any], **values: Any) -> str:
    """The template with these values. `escaped`: what makes one safe to show, before HTML's own escaping of what is
    not marked as safe."""
    return environment(escaped).get_template(name).render(values)


@cache
def environment(escaped: Callable[[Any], Any]) -> Environment:
    """Jinja's environment, with the functions that all templates share."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(loader=PackageLoader("canary_mlflow.reports"), autoescape=True, undefined=StrictUndefined,
                       finalize=escaped, trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    made.globals |= {
        "words": WORDS,
        "quantity": formatting.quantity,
        "change": formatting.change,
        "count": formatting.counted,
        "sentence": formatting.sentence,
        "tone": formatting.tone,
        "unit_of": lambda name: METRICS[name].unit if name in METRICS else "",
        "figure": figure,
        "share_of": share,
        "x_of": x_of,
        "in_letters": in_letters,
    }
    return made
