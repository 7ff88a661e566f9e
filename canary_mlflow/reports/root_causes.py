"""The measured causes of a verdict, in a sentence: the paragraph after what changed."""

from __future__ import annotations

from canary_mlflow.reports.decision import Decision
from gates.model.verdict import Outcome
from gates.model.wording import sentence_case

SHOWN = 2  # causes; after the first, only those that explain much


def because(decision: Decision, most: int = SHOWN) -> str:
    """`Measured cause: waiting for data 4 → 29 ms explains 92 % of the slower step (time.data_wait).`; '' if nothing
    explains the verdict, or if it is PASS."""
    found = decision.verdict.causes[: max(1, most)]
    if decision.verdict.outcome is Outcome.PASS or not found:
        return ""
    said = "; ".join(f"{one.said} ({one.rule})" for one in found)
    return f"Measured cause: {said}." if len(found) == 1 else f"Measured causes: {said}."


def listed(decision: Decision) -> list[str]:
    """All causes, one sentence each; if a verdict other than PASS has none, a sentence that says so."""
    verdict = decision.verdict
    if verdict.outcome is Outcome.PASS or not verdict.baseline_runs:
        return []
    return [f"{sentence_case(one.said)} ({one.rule})." for one in verdict.causes] or ["No cause found."]
