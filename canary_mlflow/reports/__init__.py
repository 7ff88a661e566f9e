"""Verdicts as people and machines read them: one function for each format, named in this dict."""

from __future__ import annotations

from collections.abc import Callable

from canary_mlflow.reports import json, markdown, text
from canary_mlflow.reports.decision import Decision

REPORTS: dict[str, Callable[[Decision], str]] = {
    "text": text.render,
    "markdown": markdown.render,
    "json": json.render,
}
