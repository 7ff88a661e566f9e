"""The figures of each judged metric as a table for a terminal, with as many columns as fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from canary_mlflow.reports import wording
from canary_mlflow.reports.console import indented
from canary_mlflow.reports.forest import in_letters
from canary_mlflow.reports.meanings import WITHIN
from gates.model.verdict import CheckOutcome

STYLES = {
    CheckOutcome.PASS: "green",
    CheckOutcome.BLOCK: "bold red",
    CheckOutcome.INCONCLUSIVE: "yellow",
    CheckOutcome.WARN: "yellow",
    CheckOutcome.NOT_JUDGED: "dim",
}
GAP = 2  # characters between the columns of the evidence
WORD, RANGES, PLOT, MEANING = "  ", "change [range]", "right is worse", "what it means"
LEFT = (WORD, "metric", PLOT, MEANING)
FIGURES = (WORD, "metric", "baseline", "candidate")
SHAPES = (
    (*FIGURES, RANGES, "limit", PLOT, MEANING),
    (*FIGURES, RANGES, "limit", PLOT),
    (*FIGURES, RANGES, "limit"),
    (*FIGURES, "change", "limit"),
)
"""From the widest."""


def evidence(rows: Sequence[wording.Row], width: int, *, all_meanings: bool = True) -> Iterator[RenderableType]:
    """The figures of each metric, with as many columns as fit: first the ranges, then the drawing, then the meaning.
    What does not fit is printed below, or a line says that it is left out; the drawing adds nothing to the figures.
    What the verdict's own reason says about a metric is repeated only with `all_meanings`."""
    shape = next((one for one in SHAPES if width >= columns_needed(rows, one)), SHAPES[-1])
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="dim", pad_edge=True)
    for name in shape:
        left = name in LEFT
        table.add_column(name, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
    for row in rows:
        # Text, because a metric's name may hold square brackets, which are rich's markup.
        word, *cells = (Text(cell) for cell in cells_of(row, shape))
        table.add_row(Text(word.plain, style=STYLES[row.outcome]), *cells)
    yield table
    if MEANING not in shape:
        said = (row for row in rows if row.meaning != WITHIN and (all_meanings or not row.in_reason))
        yield from (indented(f"{row.metric}: {row.meaning}") for row in said)
    if RANGES not in shape:
        needed = columns_needed(rows, SHAPES[-2])
        yield indented(f"The ranges of the changes are left out: they need {needed} columns.", style="dim")


def cells_of(row: wording.Row, shape: Sequence[str]) -> list[str]:
    """One line of the evidence."""
    found = {
        WORD: f"  {row.word}",
        "metric": row.metric,
        "baseline": row.baseline,
        "candidate": row.candidate,
        "change": row.change,
        RANGES: f"{row.change} {row.range}".rstrip(),
        "limit": row.limit,
        PLOT: in_letters(row.forest),
        MEANING: row.meaning,
    }
    return [found[name] for name in shape]


def columns_needed(rows: Sequence[wording.Row], shape: Sequence[str]) -> int:
    """The width of the evidence, in characters, if nothing in it is cut or folded."""
    lines = [list(shape), *(cells_of(row, shape) for row in rows)]
    return sum(max(len(cell) for cell in column) + GAP for column in zip(*lines, strict=True))
