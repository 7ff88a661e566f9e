"""What changed between the two sides, in a sentence: the paragraph after what differs exactly (facts.py)."""

from __future__ import annotations

from canary_mlflow.reports.decision import Decision
from gates.facts.differences import CONFIGURATION, WORKLOAD, missing
from gates.facts.exact import FACTS
from gates.model.verdict import Difference, Verdict
from gates.model.wording import around_difference, listed

SHOWN = 6  # differences that a sentence lists
LONGEST = 40  # characters of a value


def changed(decision: Decision, most: int = SHOWN) -> str:
    """`Changed: train.learning_rate 0.002 → 0.02; trl 1.15.0 → 1.16.0.`; '' if nothing was compared."""
    verdict = decision.verdict
    if not verdict.baseline_runs or not verdict.candidate_runs:
        return ""
    found = [one for one in verdict.differences if one.group != FACTS]
    if found:
        return f"Changed: {listed([*map(difference, found)], most, clauses=True)}.{unknown(verdict)}"
    if verdict.compared:
        return f"Changed: nothing that is recorded ({', '.join(compared(verdict))}).{unknown(verdict)}"
    return "Changed: unknown, the runs of both sides do not say what they were made with."


def difference(one: Difference) -> str:
    """`trl 1.15.0 → 1.16.0`."""
    by = " (by rounding)" if one.rounding else ""
    before, now = around_difference(one.baseline, one.candidate, LONGEST)
    return f"{one.key} {before} → {now}{by}"


def compared(verdict: Verdict) -> list[str]:
    """The groups that both sides recorded and in which nothing differs; the workload belongs to the configuration if
    that was compared."""
    other = {one.group for one in verdict.differences if not one.rounding}
    left_out = {WORKLOAD} if CONFIGURATION in verdict.compared else set()
    return [group for group in verdict.compared if group not in other | left_out]


def unknown(verdict: Verdict) -> str:
    """The groups that are not recorded on both sides, so that nobody takes them for equal; '' if there are none."""
    left_out = missing([*verdict.compared, WORKLOAD])
    return f" Missing on one or both sides: {', '.join(left_out)}." if verdict.compared and left_out else ""
