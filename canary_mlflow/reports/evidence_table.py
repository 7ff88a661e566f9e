"""The figures of each judged metric as a table for a terminal, as many columns as fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from canary_mlflow.reports import wording
from canary_mlflow.reports.console import indented
from gates.verdict import CheckOutcome

STYLES = {
    CheckOutcome.PASS: "green",
    CheckOutcome.BLOCK: "bold red",
    CheckOutcome.INCONCLUSIVE: "yellow",
    CheckOutcome.WARN: "yellow",
    CheckOutcome.NOT_JUDGED: "dim",
}
GAP = 2  # columns between those of the evidence


def evidence(rows: Sequence[wording.Row], width: int, *, all_meanings: bool = True) -> Iterator[RenderableType]:
    """The figures of each metric, as many columns as fit; what does not fit is said below, or said to be left out. What
    the verdict's own reason says of a metric is said again with `all_meanings` alone."""
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
        said = (row for row in rows if row.outcome is not CheckOutcome.PASS and (all_meanings or not row.told))
        yield from (indented(f"{row.metric}: {row.meaning}") for row in said)
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
