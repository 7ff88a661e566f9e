"""The judge: finished runs go in, a verdict comes out. No files, no clock, no random numbers; numpy and
scipy only."""

from __future__ import annotations

from gates.judge import judge
from gates.model.fields import PolicyError
from gates.model.policy import Bootstrap, Policy, policy_to_dict
from gates.model.records import Run, Series, Version
from gates.model.rules import MetricRule, Role
from gates.model.verdict import (
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
from gates.parser import parse_policy

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
