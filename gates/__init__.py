"""The judge: finished runs go in, a verdict comes out. No files, no clock, no random numbers; numpy and
scipy only."""

from __future__ import annotations

from canary_mlflow.gates.judge import judge
from canary_mlflow.gates.model.fields import PolicyError
from canary_mlflow.gates.model.policy import Bootstrap, Policy, policy_to_dict
from canary_mlflow.gates.model.records import Run, Series, Version
from canary_mlflow.gates.model.rules import MetricRule, Role
from canary_mlflow.gates.model.verdict import (
    Check,
    CheckOutcome,
    Difference,
    Evidence,
    Outcome,
    ReasonCode,
    Verdict,
    verdict_from_dict,
    verdict_to_dict,
)
from canary_mlflow.gates.parser import parse_policy

if __name__ == "gates":
    __path__ = []  # its parts are found below canary_mlflow alone, so that each is one module

__all__ = [
    "Bootstrap",
    "Check",
    "CheckOutcome",
    "Difference",
    "Evidence",
    "MetricRule",
    "Outcome",
    "Policy",
    "PolicyError",
    "ReasonCode",
    "Role",
    "Run",
    "Series",
    "Verdict",
    "Version",
    "judge",
    "parse_policy",
    "policy_to_dict",
    "verdict_from_dict",
    "verdict_to_dict",
]
