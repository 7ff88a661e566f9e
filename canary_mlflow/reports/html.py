"""The study as one HTML page: no requests, no scripts, light or dark by the reader's setting, printable."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from canary_mlflow.gates.model.wording import figure
from canary_mlflow.reports import formatting, pictures, profile
from canary_mlflow.reports.charts import Chart
from canary_mlflow.reports.rendering import filled
from canary_mlflow.reports.study import Study
from canary_mlflow.reports.view import view_of
from canary_mlflow.shown import finalized, shown


def render(study: Study) -> str:
    """The whole page. Imports matplotlib and jinja2."""
    study = shown(study)
    decision = study.decision
    return filled(
        "study.html",
        finalized,
        study=study,
        decision=decision,
        images={chart.slug: as_address(pictures.svg(chart)) for chart in study.charts if chart.curves},
        view=None if decision is None else view_of(decision, then="ledger" in study.origin),
        policy="" if decision is None else written(decision.verdict.policy),
        fingerprint=fingerprint(study),
        tables=[] if study.profiled is None else list(profile.tables(study.profiled)),
        described=described,
    )


def written(policy: Mapping[str, Any]) -> str:
    """The policy as YAML, as a file would have it."""
    import yaml

    return str(yaml.safe_dump(dict(policy), sort_keys=False, allow_unicode=True))


def fingerprint(study: Study) -> list[tuple[str, str, list[str]]]:
    """(group, key, distinct values) of the runs' workload, hardware, environment and facts."""
    rows = []
    for group in ("workload", "hardware", "environment", "facts"):
        keys = sorted({key for run in study.candidates for key in getattr(run, group)})
        for key in keys:
            values = [getattr(run, group).get(key, "-") for run in study.candidates]
            rows.append((group, key, list(dict.fromkeys(values))))
    return rows


def as_address(svg: str) -> str:
    """A picture as a data: address: as an image, so that nothing in it can interfere with the page."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def described(chart: Chart) -> str:
    """A chart in words, for readers who cannot see it."""
    runs = list(dict.fromkeys(curve.run for curve in chart.curves))
    ends = [f"{curve.run} from {figure(curve.values[0])} to {figure(curve.values[-1])}" for curve in chart.curves[:4]]
    return f"{chart.title} over the steps of {formatting.counted(len(runs), 'run')}: {'; '.join(ends)}"
