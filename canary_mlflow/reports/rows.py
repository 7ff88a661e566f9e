"""The rows of a verdict's table: each judged metric's evidence as finished text, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from canary_mlflow.gates.model.rules import Role
from canary_mlflow.gates.model.verdict import Check, CheckOutcome, Evidence, Outcome, ReasonCode, Standing
from canary_mlflow.reports import formatting
from canary_mlflow.reports.decision import Decision
from canary_mlflow.reports.forest import Forest, forest, in_letters

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
WORSE = "worse"
"""In place of these where the whole range of a change is harm: no word for what is unknown."""
WITHIN = "within the limit"
HARM = {
    Standing.BEYOND: "harm beyond the limit, over the whole range",
    Standing.WORSE: "worse over the whole range, perhaps beyond the limit",
}
KINDS = {
    "calibrated": "as calibrated here",
    "learnt": "as learnt from several sessions",
}
CLEARLY = 0.25
"""Share of its limit by which a metric is better when that is worth a sentence."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One metric's evidence, ready to print. `in_reason`: whether the verdict's own reason says what it means.
    `forest`: where its change lies; None if there is none. `check`: what it was made of."""

    check: Check
    word: str
    baseline: str
    candidate: str
    change: str
    range: str
    limit: str
    meaning: str
    in_reason: bool
    forest: Forest | None

    @property
    def metric(self) -> str:
        """Its name."""
        return self.check.metric

    @property
    def outcome(self) -> CheckOutcome:
        """The answer of its check."""
        return self.check.outcome

    @property
    def advisory(self) -> bool:
        """Whether it decides nothing."""
        return self.check.role is Role.ADVISORY

    @property
    def ranged(self) -> str:
        """The change with its range."""
        return f"{self.change} {self.range}".rstrip()

    @property
    def details(self) -> list[tuple[str, str]]:
        """(label, text) for the rest of the evidence."""
        found = self.check.evidence
        if found is None:
            return []
        more = self.check.more_runs
        of = "seeds" if found.items else "runs"
        groups = f"{found.items.groups:,.0f}" if found.items and round(found.items.groups) < found.items.items else ""
        details = {
            of: f"{found.candidate_runs} against {found.baseline_runs}{', paired by seed' if found.paired else ''}",
            "groups of items": groups,
            "chance of this if nothing were worse": probability(found.p_harm),
            "chance of this if it were worse than the limit": probability(found.p_noninferior),
            "smallest harm these runs would show": detectable(found),
            "spread between runs": "" if found.spread is None else f"{found.spread:.3g}",
            "spread comes from": str(found.prior or ""),
            "runs per side that would decide": "" if more is None else str(more),
        }
        return [(name, value) for name, value in details.items() if value]

    def to_dict(self) -> dict[str, str]:
        """Its cells as plain JSON values."""
        names = ("word", "metric", "baseline", "candidate", "change", "range", "limit", "meaning")
        cells = {name: str(getattr(self, name)) for name in names}
        return {**cells, "outcome": str(self.outcome), "plot": in_letters(self.forest)}


def rows_of(decision: Decision) -> list[Row]:
    """The rows of the judged metrics: first those that block or are open, in the verdict's order, then those that
    decide, and within each group those that need attention."""

    def place(check: Check) -> tuple[bool, bool, int]:
        asking = check.outcome in ORDER[:2]
        return not asking, not asking and check.role is not Role.GATE, ORDER.index(check.outcome)

    checks = [check for check in decision.verdict.checks if check.role is not Role.HARD and is_judged(check)]
    return [row_of(decision, check) for check in sorted(checks, key=place)]


def is_judged(check: Check) -> bool:
    """Whether there is anything to show in a row."""
    return check.evidence is not None or check.outcome is not CheckOutcome.NOT_JUDGED


def row_of(decision: Decision, check: Check) -> Row:
    """One check as text."""
    word = WORSE if is_worse(decision, check) else WORDS[check.outcome]
    both = both_ways(decision.verdict.policy, check.metric)
    cells = dict.fromkeys(("baseline", "candidate", "change", "limit"), formatting.NOTHING) | {"range": ""}
    if (found := check.evidence) is not None:
        cells = {
            "baseline": formatting.quantity(found.baseline, found.unit),
            "candidate": formatting.quantity(found.candidate, found.unit),
            "change": changed(found),
            "range": "bit-identical" if found.identical else f"{range_of(found)}{flipped(found)}",
            "limit": formatting.limit(found.margin, relative=found.relative, unit=found.unit, both=both),
        }
    return Row(
        check=check,
        word=f"({word})" if check.role is Role.ADVISORY else word,
        meaning=meaning(decision, check),
        in_reason=check.outcome is CheckOutcome.PASS or check.reason.lower() in decision.verdict.reason.lower(),
        forest=forest(check.evidence, both=both),
        **cells,
    )


def changed(found: Evidence) -> str:
    """The change of a metric with its sign."""
    return formatting.change(found.change, relative=found.relative, unit=found.unit)


def range_of(found: Evidence) -> str:
    """The range of a change; '' if an end is unknown."""
    return formatting.interval(found.change_low, found.change_high, relative=found.relative, unit=found.unit)


def flipped(found: Evidence) -> str:
    """`, 78 broke, 45 mended of 1,319`, of a benchmark's items; '' for any other metric."""
    if (items := found.items) is None:
        return ""
    lost = f", {items.lost:.3g} lost" if items.lost else ""
    return f", {items.broke:,} broke, {items.mended:,} mended of {items.items:,}{lost}"


def both_ways(policy: Mapping[str, Any], name: str) -> bool:
    """Whether a rule of a verdict's policy treats either direction as harm."""
    return bool(policy.get("rules", {}).get(name, {}).get("worse") == "both")


def standing(decision: Decision, check: Check) -> Standing:
    """What the whole range of a check's change says."""
    both = both_ways(decision.verdict.policy, check.metric)
    return check.evidence.standing(both) if check.evidence else Standing.OPEN


def is_worse(decision: Decision, check: Check) -> bool:
    """Whether a check decides nothing but shows harm: the whole range of its change is worse."""
    undecided = check.outcome in (CheckOutcome.INCONCLUSIVE, CheckOutcome.NOT_JUDGED)
    return undecided and standing(decision, check) is not Standing.OPEN


def meaning(decision: Decision, check: Check) -> str:
    """What a row's figures mean; without figures, the judge's own reason."""
    found = check.evidence
    if found is None:
        return check.reason
    if check.outcome is CheckOutcome.PASS:
        return WITHIN if found.within else "beyond the limit, but nothing takes longer for it"
    if check.outcome in (CheckOutcome.BLOCK, CheckOutcome.WARN):
        return "beyond the limit"
    if (shown := standing(decision, check)) is not Standing.OPEN:
        return f"{HARM[shown]}; {missing(check)}"
    size = "" if check.role is Role.ADVISORY else detectable(found)
    said = f"no change and harm are both possible; {missing(check)}"
    return f"{said}; harm of {size} would show" if size else said


def missing(check: Check) -> str:
    """What a decision would take, as a clause."""
    if check.evidence and check.evidence.items:
        return check.reason.rpartition(": ")[2]
    if check.reason_code is ReasonCode.NEAR_MARGIN and not check.more_runs:
        return "too close to the limit for any number of runs"
    if check.more_runs:
        return f"{check.more_runs} runs per side would tell"
    return "only runs that differ less would tell"


def detectable(found: Evidence) -> str:
    """The size of the smallest harm that these runs would have shown, in the unit of the change."""
    size = found.smallest_detectable
    return "" if size is None else formatting.change(size, relative=found.relative, unit=found.unit).removeprefix("+")


def probability(p: float | None) -> str:
    """`0.012`, or `under 0.0001`; '' for None."""
    return "" if p is None else "under 0.0001" if p < 0.0001 else f"{p:.2g}"


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
            found.append((gain, f"{check.metric} {changed(one)} {range_of(one)}"))
    found.sort(reverse=True)
    return f" Better than the baseline: {', '.join(said for _, said in found[:2])}." if found else ""


def how_to_read(decision: Decision) -> str:
    """The rules behind ranges and brackets; '' if there are none."""
    shown = [(check.role, check.evidence) for check in decision.verdict.checks if check.evidence is not None]
    text = ""
    if any(evidence.change_low is not None for _, evidence in shown):
        text += f" A metric passes when the whole range of its change{confidence(decision)} is within the limit."
    if any(check.evidence and not check.evidence.within for check in decision.having(CheckOutcome.PASS)):
        text += " A tail or a drift of the step time also passes where nothing takes longer for it."
    if any(evidence.unit == "kernels" for _, evidence in shown):
        text += " (Kernels: CPU time, in units of a fixed computation timed beside the steps.)"
    kinds = sorted({evidence.prior for _, evidence in shown if evidence.prior} - {"shipped"})
    if kinds:
        text += f" (Spread between runs: {', '.join(KINDS.get(kind, kind) for kind in kinds)}.)"
    if any(role is Role.ADVISORY for role, _ in shown):
        text += " (In brackets: advice, decides nothing.)"
    return text


def confidence(decision: Decision) -> str:
    """` (90 % confidence)`: a range leaves out `alpha_pass` at each end; half of that if both directions are harm."""
    policy = decision.verdict.policy
    alpha = policy.get("alpha_pass")
    if not isinstance(alpha, float):
        return ""
    ranges = [check for check in decision.verdict.checks if check.evidence and check.evidence.change_low is not None]
    two_sided = any(both_ways(policy, check.metric) for check in ranges)
    besides = f", {100 * (1 - alpha):.4g} % where it may change neither way" if two_sided else ""
    return f" ({100 * (1 - 2 * alpha):.4g} % confidence{besides})"
