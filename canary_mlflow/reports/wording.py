"""The sentences and rows that all reports for people share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from canary_mlflow.reports import figures
from canary_mlflow.reports.decision import Decision, Question
from canary_mlflow.reports.forest import Forest, both_ways, forest
from canary_mlflow.reports.meanings import how_to_read, meaning, standing
from gates.model.rules import Role
from gates.model.verdict import Check, CheckOutcome, Outcome, Standing

ORDER = (
    CheckOutcome.BLOCK,
    CheckOutcome.INCONCLUSIVE,
    CheckOutcome.WARN,
    CheckOutcome.PASS,
    CheckOutcome.NOT_JUDGED,
)
WORDS = {
    CheckOutcome.PASS: "ok",
    CheckOutcome.BLOCK: "BLOCK",
    CheckOutcome.INCONCLUSIVE: "unclear",
    CheckOutcome.WARN: "warning",
    CheckOutcome.NOT_JUDGED: "not judged",
}
CLEARLY = 0.25
"""Share of its limit by which a metric is better when that is worth a sentence."""
WORSE = "worse"
"""In place of these where the whole range of a change is harm: no word for what is unknown."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One metric's evidence, ready to print. `in_reason`: whether the verdict's own reason says what it means.
    `forest`: where its change lies; None if there is none."""

    outcome: CheckOutcome
    word: str
    metric: str
    baseline: str
    candidate: str
    change: str
    range: str
    limit: str
    meaning: str
    advisory: bool = False
    in_reason: bool = False
    forest: Forest | None = None


def title(decision: Decision) -> str:
    """The verdict and what it is about, in one line."""
    model, version = decision.model, decision.version
    if decision.question is Question.COMPARISON:
        return f"{decision.candidate_label} (candidate) against {decision.baseline_label} (baseline)"
    if decision.question is Question.SESSION:
        return f"{model}, session {decision.session_id}"
    if decision.question is Question.CHANGE:
        against = f"champion version {decision.champion_before}" if decision.champion_before else "no champion"
        return f"{model}, session {decision.session_id} against {against}"
    if decision.question in (Question.FILES, Question.REVISIONS):
        return f"{decision.candidate_label} against {decision.baseline_label}"
    if decision.champion_before is None:
        return f"{model} version {version}, no champion to compare with"
    return f"{model} version {version} against champion version {decision.champion_before}"


def heading(decision: Decision) -> str:
    """The first word of the report; for a comparison, a phrase."""
    if decision.question is Question.COMPARISON:
        return f"COMPARISON, a gate would say {decision.verdict.outcome}"
    return decision.word.upper()


def reason(decision: Decision) -> str:
    """The verdict's reason as a sentence; a bootstrap is explained, because nothing was compared."""
    if decision.bootstrapped:
        return (
            "The hard gates found nothing wrong, and there is no champion yet. Nothing was compared, so this is no "
            "PASS: the version becomes the baseline for later ones."
        )
    return sentence(decision.verdict.reason) + better(decision)


def better(decision: Decision) -> str:
    """A sentence, after a blank, on what improved in a PASS: deciding metrics that gained at least a quarter of their
    limit, and whose whole range is better; '' for nothing."""
    if decision.verdict.outcome is not Outcome.PASS:
        return ""
    found = []
    for check in decision.verdict.checks:
        one = check.evidence
        both = both_ways(decision.verdict.policy, check.metric)
        if check.role is not Role.GATE or one is None or both or not (one.margin and one.change):
            continue
        gain, ends = -one.change / one.margin, (one.change_low, one.change_high)
        if gain >= CLEARLY and all(end is not None and end / one.margin < 0 for end in ends):
            interval = figures.interval(one.change_low, one.change_high, relative=one.relative, unit=one.unit)
            found.append((gain, f"{check.metric} {figures.change(one.change, relative=one.relative, unit=one.unit)}"
                                f" {interval}"))  # fmt: skip
    found.sort(reverse=True)
    return f" Better than the baseline: {', '.join(said for _, said in found[:2])}." if found else ""


def sentence(text: str) -> str:
    """The text with a capital first letter and a full stop."""
    text = text.strip()
    if not text:
        return text
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


def judged(decision: Decision) -> list[Row]:
    """The rows of the judged metrics: first those that block or are open, in the verdict's order, then those that
    decide, and within each group those that need attention."""
    checks = [check for check in decision.verdict.checks if check.role is not Role.HARD and is_judged(check)]
    asking = [check for check in checks if check.outcome in ORDER[:2]]
    others = [check for check in checks if check not in asking]
    asking.sort(key=lambda check: ORDER.index(check.outcome))
    others.sort(key=lambda check: (check.role is not Role.GATE, ORDER.index(check.outcome)))
    return [row(decision, check) for check in (*asking, *others)]


def not_judged(decision: Decision) -> list[Check]:
    """The checks of metrics that the policy names but these runs lack."""
    return [check for check in decision.verdict.checks if check.role is not Role.HARD and not is_judged(check)]


def hard_gates(decision: Decision) -> list[Check]:
    """The checks that need no baseline, failed ones first."""
    checks = [check for check in decision.verdict.checks if check.role is Role.HARD and not in_the_way(check)]
    return sorted(checks, key=lambda check: ORDER.index(check.outcome))


def obstacles(decision: Decision) -> list[Check]:
    """The checks that make a comparison impossible, without the first, which the verdict's reason names."""
    return [check for check in decision.verdict.checks if check.role is Role.HARD and in_the_way(check)][1:]


def in_the_way(check: Check) -> bool:
    """Whether a check is about the comparison (no baseline, other hardware), not about the candidate."""
    return check.outcome is CheckOutcome.INCONCLUSIVE


def is_judged(check: Check) -> bool:
    """Whether there is anything to show in a row."""
    return check.evidence is not None or check.outcome is not CheckOutcome.NOT_JUDGED


def row(decision: Decision, check: Check) -> Row:
    """One check as text."""
    word = WORSE if is_worse(decision, check) else WORDS[check.outcome]
    word = f"({word})" if check.role is Role.ADVISORY else word
    both = both_ways(decision.verdict.policy, check.metric)
    cells = dict.fromkeys(("baseline", "candidate", "change", "limit"), figures.NOTHING) | {"range": ""}
    if (found := check.evidence) is not None:
        relative, unit = found.relative, found.unit
        ends = figures.interval(found.change_low, found.change_high, relative=relative, unit=unit)
        ends = "bit-identical" if found.identical else ends
        cells = {
            "baseline": figures.quantity(found.baseline, unit),
            "candidate": figures.quantity(found.candidate, unit),
            "change": figures.change(found.change, relative=relative, unit=unit),
            "range": ends,
            "limit": figures.limit(found.margin, relative=relative, unit=unit, both=both),
        }
    return Row(
        outcome=check.outcome,
        word=word,
        metric=check.metric,
        meaning=meaning(decision, check),
        advisory=check.role is Role.ADVISORY,
        in_reason=check.outcome is CheckOutcome.PASS or check.reason.lower() in decision.verdict.reason.lower(),
        forest=forest(check.evidence, both=both),
        **cells,
    )


def evidence_note(decision: Decision) -> str:
    """How much was compared, by which policy, and how to read the ranges."""
    session = f", session {decision.session_id}" if decision.session_id else ""
    return f"{runs_note(decision)}{session}.{how_to_read(decision)}"


def runs_note(decision: Decision) -> str:
    """`3 candidate runs against 3 baseline runs, policy smoke`."""
    verdict = decision.verdict
    runs = figures.counted(len(verdict.candidate_runs), "candidate run")
    against = f" against {figures.counted(len(verdict.baseline_runs), 'baseline run')}" if verdict.baseline_runs else ""
    return f"{runs}{against}, policy {verdict.policy.get('name', '?')}"


def advice_note(decision: Decision, *, names: bool) -> str:
    """The checks that decide nothing, in short: `beyond the limit: step_time; undecided: loss; ok: 7 metrics`. Without
    `names`, how many they are."""
    groups: dict[str, list[str]] = {"beyond the limit": [], WORSE: [], "undecided": []}
    checks = [check for check in decision.verdict.checks if check.role is Role.ADVISORY and is_judged(check)]
    for check in checks:
        if check.outcome is CheckOutcome.WARN:
            groups["beyond the limit"].append(check.metric)
        elif check.outcome is not CheckOutcome.PASS:
            groups[WORSE if is_worse(decision, check) else "undecided"].append(check.metric)
    said = [f"{words}: {', '.join(found) if names else len(found)}" for words, found in groups.items() if found]
    if passed := sum(check.outcome is CheckOutcome.PASS for check in checks):
        said.append(f"ok: {figures.counted(passed, 'metric')}")
    return "; ".join(said)


def is_worse(decision: Decision, check: Check) -> bool:
    """Whether a check decides nothing but shows harm: the whole range of its change is worse."""
    undecided = check.outcome in (CheckOutcome.INCONCLUSIVE, CheckOutcome.NOT_JUDGED)
    return undecided and standing(decision, check) is not Standing.OPEN


def by_reason(checks: Sequence[Check]) -> list[tuple[list[str], str]]:
    """(metrics, the reason that they share): one line for each cause."""
    found: dict[str, list[str]] = {}
    for check in checks:
        found.setdefault(check.reason, []).append(check.metric)
    return [(names, reason) for reason, names in found.items()]
