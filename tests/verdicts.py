"""What tests look for in a verdict."""

from __future__ import annotations

from canary_mlflow.gates import Verdict
from canary_mlflow.gates.model.verdict import Check


def check(verdict: Verdict, name: str) -> Check:
    """The check of that name."""
    return next(check for check in verdict.checks if check.metric == name)
