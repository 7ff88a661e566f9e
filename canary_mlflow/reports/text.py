"""The report on a terminal: verdict first, then the evidence, then what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from rich.console import Group, RenderableType
from rich.text import Text

from canary_mlflow.reports import advice, wording
from canary_mlflow.reports.console import PLAIN_WIDTH, as_text, indented, labelled, print_on
from canary_mlflow.reports.decision import Decision, RunWarning
from canary_mlflow.reports.evidence_table import STYLES, evidence
from gates.verdict import Check, CheckOutcome, Difference

HEADINGS = {
    "PASS": "bold green",
    "BLOCK": "bold red",
    "INCONCLUSIVE": "bold yellow",
    "bootstrap": "bold cyan",
}
SHOWN_DIFFERENCES = 8
SHOWN_REASONS = 4
SHOWN_WARNINGS = 5
SHOWN_NOTES = 8


def render(decision: Decision, *, width: int = PLAIN_WIDTH) -> str:
    """The report as plain text of at most `width` columns."""
    return as_text(lambda columns: report(decision, columns), width)


def show(decision: Decision, stream: IO[str]) -> None:
    """Print the report on a stream."""
    print_on(stream, lambda columns: report(decision, columns))


def report(decision: Decision, width: int) -> RenderableType:
    """All parts, in reading order."""
    return Group(*parts(decision, width))


def parts(decision: Decision, width: int) -> Iterator[RenderableType]:
    """Verdict, evidence, hard gates, differences, next step, way into the UI."""
    yield Text.assemble((wording.heading(decision), HEADINGS[decision.word]), "  ", (wording.title(decision), "bold"))
    yield indented(wording.reason(decision))
    rows = wording.judged(decision)
    if rows:
        yield ""
        yield from evidence(rows, width)
        yield ""
    yield indented(wording.evidence_note(decision), style="dim")
    yield from missing(wording.not_judged(decision))
    yield from hard_gates(wording.hard_gates(decision))
    yield from obstacles(wording.obstacles(decision))
    yield from differences(decision.verdict.differences)
    yield from notes(decision.verdict.notes)
    yield from warnings(decision.warnings)
    yield ""
    yield labelled("next", advice.next_step(decision))
    if decision.store:
        command, address = advice.open_ui(decision.store, decision.page)
        yield labelled("open", f"{command}\nthen {address}" if command else address)


def missing(checks: Sequence[Check]) -> Iterator[RenderableType]:
    """What the policy asks for and these runs cannot answer, by name."""
    if not checks:
        return
    if len(checks) > SHOWN_REASONS:
        names = ", ".join(check.metric for check in checks)
        yield indented(f"{len(checks)} not judged, for reasons that --json gives: {names}.", style="dim")
        return
    for check in checks:
        yield indented(f"Not judged: {check.metric}: {wording.sentence(check.reason)}", style="dim")


def hard_gates(checks: Sequence[Check]) -> Iterator[RenderableType]:
    """Failed ones with their reason, the others in one line."""
    if not checks:
        return
    yield ""
    text = Text()
    for check in checks:
        if check.outcome is not CheckOutcome.PASS:
            text.append(f"{check.metric} {wording.WORDS[check.outcome]}", style=STYLES[check.outcome])
            text.append(f": {wording.sentence(check.reason)}\n")
    passed = [check.metric for check in checks if check.outcome is CheckOutcome.PASS]
    if passed:
        text.append("ok", style=STYLES[CheckOutcome.PASS])
        text.append(f": {', '.join(passed)}")
    text.rstrip()
    yield labelled("hard gates", text)


def obstacles(checks: Sequence[Check]) -> Iterator[RenderableType]:
    """What else makes the comparison impossible."""
    if checks:
        yield labelled("also", "\n".join(wording.sentence(check.reason) for check in checks))


def differences(found: Sequence[Difference]) -> Iterator[RenderableType]:
    """What is not the same around the two sides."""
    if not found:
        return
    yield ""
    lines = [f"{one.key}: {one.baseline} → {one.candidate}" for one in found[:SHOWN_DIFFERENCES]]
    more = len(found) - SHOWN_DIFFERENCES
    if more > 0:
        lines.append(f"and {more} more (--json lists all)")
    yield labelled("differs", "\n".join(lines))


def warnings(found: Sequence[RunWarning]) -> Iterator[RenderableType]:
    """What the watch said while the runs went on, the most serious first."""
    if not found:
        return
    yield ""
    ordered = sorted(found, key=lambda one: -one.warning.level)
    lines = [wording.warning(one) for one in ordered[:SHOWN_WARNINGS]]
    if len(found) > SHOWN_WARNINGS:
        lines.append(f"and {len(found) - SHOWN_WARNINGS} more (warnings.jsonl of each run has all)")
    yield labelled("warnings", "\n".join(lines))


def notes(found: Sequence[str]) -> Iterator[RenderableType]:
    """What else a reader should know about the runs."""
    if not found:
        return
    yield ""
    more = len(found) - SHOWN_NOTES
    lines = [*found[:SHOWN_NOTES], *([f"and {more} more (--json lists all)"] if more > 0 else [])]
    yield labelled("notes", "\n".join(lines))
