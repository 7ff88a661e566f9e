"""What changed between the two sides, in a sentence: the second paragraph of every report."""

from __future__ import annotations

from canary_mlflow.reports.decision import Decision
from gates.differences import GROUPS, WORKLOAD
from gates.verdict import Difference, Verdict

SHOWN = 6  # differences that a sentence lists
LONGEST = 40  # characters of a value


def changed(decision: Decision, most: int = SHOWN) -> str:
    """`Changed: train.learning_rate 0.002 → 0.02; trl 1.15.0 → 1.16.0.`; '' where nothing was compared."""
    verdict = decision.verdict
    if not verdict.baseline_runs or not verdict.candidate_runs:
        return ""
    found = verdict.differences
    if found:
        more = f"; and {len(found) - most} more" if len(found) > most else ""
        return f"Changed: {'; '.join(difference(one) for one in found[:most])}{more}.{unknown(verdict)}"
    if verdict.compared:
        return f"Changed: nothing that is recorded ({', '.join(compared(verdict))}).{unknown(verdict)}"
    return "Changed: unknown, the runs of both sides do not say what they were made with."


def difference(one: Difference) -> str:
    """`trl 1.15.0 → 1.16.0`."""
    return f"{one.key} {short(one.baseline)} → {short(one.candidate)}"


def compared(verdict: Verdict) -> list[str]:
    """The groups of facts that both sides recorded; the workload is part of the configuration where there is one."""
    return [group for group in verdict.compared if group != WORKLOAD or GROUPS[0] not in verdict.compared]


def unknown(verdict: Verdict) -> str:
    """What is not recorded of both sides, so that nobody takes it for equal; '' for nothing."""
    missing = [group for group in GROUPS if group not in verdict.compared and group != WORKLOAD]
    return f" Not recorded of both: {', '.join(missing)}." if verdict.compared and missing else ""


def short(value: str) -> str:
    """A value that fits into a line."""
    return value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…"
