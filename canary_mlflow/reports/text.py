"""The report on a terminal: verdict first, then the evidence, then what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from canary_mlflow.reports import advice, wording
from canary_mlflow.reports.console import PLAIN_WIDTH, as_text, print_on
from canary_mlflow.reports.decision import Decision, RunWarning
from gates.verdict import Check, CheckOutcome, Difference

STYLES = {
    CheckOutcome.PASS: "green",
    CheckOutcome.BLOCK: "bold red",
    CheckOutcome.INCONCLUSIVE: "yellow",
    CheckOutcome.WARN: "yellow",
    CheckOutcome.NOT_JUDGED: "dim",
}
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
GAP = 2  # columns between those of the evidence


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


def indented(text: str, style: str = "") -> RenderableType:
    """A paragraph under the first line."""
    return Padding(Text(text, style=style), (0, 0, 0, 2))


def labelled(label: str, text: str | Text) -> RenderableType:
    """`label   text`, with continuation lines under the text."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=12)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"  {label}", style="bold"), text if isinstance(text, Text) else Text(text))
    return grid


def evidence(rows: Sequence[wording.Row], width: int) -> Iterator[RenderableType]:
    """The figures of each metric, as many columns as fit; what does not fit is said below, or said to be left out."""
    with_ranges = columns_needed(rows, ranges=True, meanings=False)
    ranges = width >= with_ranges
    meanings = width >= columns_needed(rows, ranges=True, meanings=True)
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="dim", pad_edge=True)
    outcome, metric, *figures = headers(ranges=ranges, meanings=False)
    table.add_column(outcome, no_wrap=True)
    table.add_column(metric, no_wrap=True, overflow="ellipsis")
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    if meanings:
        table.add_column(headers(ranges=ranges, meanings=True)[-1], no_wrap=True)
    for row in rows:
        # Text, because a metric's name may hold square brackets, which are rich's markup.
        word, *cells = (Text(cell) for cell in cells_of(row, ranges=ranges, meanings=meanings))
        table.add_row(Text(word.plain, style=STYLES[row.outcome]), *cells)
    yield table
    if not meanings:
        yield from (indented(f"{row.metric}: {row.meaning}") for row in rows if row.outcome is not CheckOutcome.PASS)
    if not ranges:
        yield indented(f"The ranges of the changes are left out: they need {with_ranges} columns.", style="dim")


def headers(*, ranges: bool, meanings: bool) -> list[str]:
    """What stands above the cells."""
    found = ["  ", "metric", "baseline", "candidate", "change [range]" if ranges else "change", "limit"]
    return [*found, "what it means"] if meanings else found


def cells_of(row: wording.Row, *, ranges: bool, meanings: bool) -> list[str]:
    """One line of the evidence."""
    change = f"{row.change} {row.range}".rstrip() if ranges else row.change
    found = [f"  {row.word}", row.metric, row.baseline, row.candidate, change, row.limit]
    return [*found, row.meaning] if meanings else found


def columns_needed(rows: Sequence[wording.Row], *, ranges: bool, meanings: bool) -> int:
    """How wide the evidence is when nothing in it is cut or folded."""
    lines = [headers(ranges=ranges, meanings=meanings)]
    lines += [cells_of(row, ranges=ranges, meanings=meanings) for row in rows]
    return sum(max(len(cell) for cell in column) + GAP for column in zip(*lines, strict=True))


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
