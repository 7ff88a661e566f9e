"""Reports on a terminal, laid out by rich: a verdict, short or `full`, and the study, which begins with it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from canary_mlflow.gates.model.items import Flip
from canary_mlflow.gates.model.rules import Role
from canary_mlflow.gates.model.verdict import CheckOutcome
from canary_mlflow.gates.notes import CLOCK, OTHER_POLICY, UNCOUNTED
from canary_mlflow.reports import differences, formatting, instabilities, layer_drift
from canary_mlflow.reports.decision import Decision, Question
from canary_mlflow.reports.differences import SHOWN
from canary_mlflow.reports.forest import in_letters
from canary_mlflow.reports.rows import WITHIN, WORSE, Row
from canary_mlflow.reports.study import Study
from canary_mlflow.reports.view import View, view_of
from canary_mlflow.shown import shown

PLAIN_WIDTH = 132  # columns, if there is no terminal to ask
WIDE = 100  # columns of a terminal that has room for a curve
FEW = 2  # notes, and warnings, that a short report says
LISTED = 10  # lines of each list of a study, unless all are asked for
GAP = 2  # characters between the columns of the evidence
HEADINGS = {
    "PASS": "bold green",
    "BLOCK": "bold red",
    "INCONCLUSIVE": "bold yellow",
    "bootstrap": "bold cyan",
}
STYLES = {
    CheckOutcome.PASS: "green",
    CheckOutcome.BLOCK: "bold red",
    CheckOutcome.INCONCLUSIVE: "yellow",
    CheckOutcome.WARN: "yellow",
    CheckOutcome.NOT_JUDGED: "dim",
}
RANGES, PLOT, MEANING = "change [range]", "right is worse", "what it means"
CELLS: dict[str, Callable[[Row], str]] = {
    "  ": lambda row: f"  {row.word}",
    "metric": lambda row: row.metric,
    "baseline": lambda row: row.baseline,
    "candidate": lambda row: row.candidate,
    "change": lambda row: row.change,
    RANGES: lambda row: row.ranged,
    "limit": lambda row: row.limit,
    PLOT: lambda row: in_letters(row.forest),
    MEANING: lambda row: row.meaning,
}
"""The columns of the evidence, by their heads."""
LEFT = ("  ", "metric", PLOT, MEANING)
SHAPES = tuple(
    [name for name in CELLS if name not in without]
    for without in (("change",), ("change", MEANING), ("change", MEANING, PLOT), (RANGES, MEANING, PLOT))
)
"""From the widest."""


def render(decision: Decision, *, width: int = PLAIN_WIDTH, full: bool = False) -> str:
    """The report of a verdict as plain text of at most `width` columns."""
    return as_text(lambda columns: verdict(decision, columns, full=full), width)


def show(decision: Decision, stream: IO[str], *, full: bool = False, curve: Callable[[], Sequence[str]] = list) -> None:
    """Print the report of a verdict on a stream. `curve`: reads the lines of the one that decided, for a terminal that
    is wide enough."""
    wide = stream.isatty() and Console(file=stream).width >= WIDE
    print_on(stream, lambda columns: verdict(decision, columns, full=full, curve=curve() if wide else ()))


def show_study(study: Study, stream: IO[str], *, full: bool = False) -> None:
    """Print the study on a stream."""
    print_on(stream, lambda columns: whole(study, columns, full=full))


def as_text(made: Callable[[int], Iterable[RenderableType]], width: int = PLAIN_WIDTH) -> str:
    """What `made` returns for `width` columns as text, without colours and without blanks at the ends of lines."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=False)
    console.print(Group(*made(console.width)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def print_on(stream: IO[str], made: Callable[[int], Iterable[RenderableType]]) -> None:
    """Print it on a stream; on a terminal, with its width and colours, or none under NO_COLOR."""
    if not stream.isatty():
        stream.write(as_text(made))
        return
    console = Console(file=stream, highlight=False)
    console.print(Group(*made(console.width)))


def verdict(decision: Decision, width: int, *, full: bool, curve: Sequence[str] = ()) -> Iterator[RenderableType]:
    """Verdict, why, what changed, hard gates that block, the figures, one line for each other cause, what to do."""
    decision = shown(decision)
    view = view_of(decision)
    yield Text.assemble((view.heading, HEADINGS[view.word]), "  ", (view.title, "bold"))
    yield from map(indented, view.paragraphs)
    for check in view.hard_with(CheckOutcome.BLOCK):
        said = formatting.sentence(check.reason)
        if said.rstrip(".") not in view.reason:
            yield indented(f"BLOCK {check.named}: {said}", style=STYLES[check.outcome])
    yield from ["", *labelled_lines("curve", curve)] if curve else ()
    yield from everything(decision, view, width) if full else short(view, width)
    for name, flips in view.broken.items():
        yield from broken(name, flips)
    yield labelled(view.label.lower(), Text.assemble(*((said, "cyan" if code else "") for said, code in view.steps)))
    for link in view.links:
        needs = f" ({link.needs})" if link.needs else ""
        yield labelled("open", f"{link.command}\nthen {link.address}" if link.command else f"{link.address}{needs}")
    files = not decision.session_id or decision.question is Question.FILES
    yield labelled("details", "--full" if files else f"canary report {decision.session_id} --full")


def short(view: View, width: int) -> Iterator[RenderableType]:
    """The first rows of the metrics that may decide, none where a hard gate decided alone; the names of the others, and
    one line for each other cause."""
    rows = [row for row in view.rows if not row.advisory]
    by_metric = view.deciding and (view.deciding[0].outcome is CheckOutcome.BLOCK or not view.hard_with("BLOCK"))
    first = rows[:SHOWN] if by_metric else []
    yield ""
    if first:
        yield from evidence(first, width, all_meanings=False)
        yield ""
    yield from labelled_lines("metrics", ["; ".join(by_word(rows[len(first) :]))])
    yield labelled("runs", "; ".join([view.runs, *hard_gates(view, names=False)]))
    yield from labelled_lines("also", view.obstacles)
    clocks = [note.partition(" (")[0] for note in view.notes if note.startswith(CLOCK)]
    yield from labelled_lines("advice", ["; ".join([*clocks, *advice(view)])])
    silent = [check.metric for check in view.not_judged if check.role is Role.GATE]
    yield from labelled_lines("not judged", [", ".join(silent)])
    notes = [note for note in view.notes if not note.startswith(CLOCK)]
    apart = [note for note in notes if note.startswith(OTHER_POLICY) or note.endswith(UNCOUNTED)]  # said nowhere else
    yield from labelled_lines("notes", [*apart, *cut([note for note in notes if note not in apart], FEW)])
    yield from labelled_lines("warnings", cut([one.said(explained=False) for one in view.warnings], FEW))


def everything(decision: Decision, view: View, width: int) -> Iterator[RenderableType]:
    """All rows, and everything else that is known."""
    yield from ("", *evidence(view.rows, width), "") if view.rows else ()
    yield indented(view.note, style="dim")
    for names, why in view.not_judged_by_reason:
        yield indented(f"Not judged: {names}: {why}", style="dim")
    yield ""
    yield from labelled_lines("hard gates", ["; ".join(hard_gates(view, names=True))])
    yield from labelled_lines("also", view.obstacles)
    yield from labelled_lines("causes", differences.all_causes(decision.verdict))
    yield from labelled_lines("notes", view.notes)
    yield from labelled_lines("warnings", [one.said() for one in view.warnings])
    yield from labelled_lines("differs", [differences.difference(one) for one in view.differences])


def evidence(rows: Sequence[Row], width: int, *, all_meanings: bool = True) -> Iterator[RenderableType]:
    """The figures of each metric, with as many columns as fit: first the ranges, then the drawing, then the meaning.
    What does not fit is printed below, or a line says that it is left out; the drawing adds nothing to the figures.
    What the verdict's own reason says about a metric is repeated only with `all_meanings`."""
    shape = next((one for one in SHAPES if width >= columns_needed(rows, one)), SHAPES[-1])
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="dim", pad_edge=True)
    for name in shape:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True, overflow="ellipsis")
    for row in rows:
        # Text, because a metric's name may hold square brackets, which are rich's markup.
        word, *cells = (Text(CELLS[name](row)) for name in shape)
        table.add_row(Text(word.plain, style=STYLES[row.outcome]), *cells)
    yield table
    if MEANING not in shape:
        said = (row for row in rows if row.meaning != WITHIN and (all_meanings or not row.in_reason))
        yield from (indented(f"{row.metric}: {row.meaning}") for row in said)
    if RANGES not in shape:
        needed = columns_needed(rows, SHAPES[-2])
        yield indented(f"The ranges of the changes are left out: they need {needed} columns.", style="dim")


def broken(name: str, flips: Sequence[Flip]) -> Iterator[RenderableType]:
    """Items of a benchmark that broke, each with its question and both answers."""
    yield indented(f"{name}, broken:")
    for one in flips:
        yield indented(f"  {one.item}  {one.was:.3g} → {one.now:.3g}  {one.asked}")
        yield indented(f"      {one.before} → {one.after}" if one.before or one.after else "", style="dim")


def columns_needed(rows: Sequence[Row], shape: Sequence[str]) -> int:
    """The width of the evidence, in characters, if nothing in it is cut or folded."""
    return sum(max(len(name), *(len(CELLS[name](row)) for row in rows)) + GAP for name in shape)


def by_word(rows: Sequence[Row]) -> list[str]:
    """`unclear: eval_loss`, `ok: step_cost, peak_memory`."""
    words: dict[str, list[str]] = {}
    for row in rows:
        words.setdefault(row.word, []).append(row.metric)
    return [f"{word}: {', '.join(metrics)}" for word, metrics in words.items()]


def advice(view: View) -> list[str]:
    """The metrics that decide nothing, in short: `beyond the limit: step_time`, `undecided: loss`, `ok: 7 metrics`."""
    groups: dict[str, list[str]] = {"beyond the limit": [], WORSE: [], "undecided": [], "ok": []}
    of_outcome = {CheckOutcome.WARN: "beyond the limit", CheckOutcome.PASS: "ok"}
    for row in view.rows:
        if row.advisory:
            undecided = WORSE if row.word == f"({WORSE})" else "undecided"
            groups[of_outcome.get(row.outcome, undecided)].append(row.metric)
    passed = groups.pop("ok")
    said = [f"{words}: {', '.join(found)}" for words, found in groups.items() if found]
    return [*said, f"ok: {formatting.counted(len(passed), 'metric')}"] if passed else said


def hard_gates(view: View, *, names: bool) -> list[str]:
    """The hard gates that passed, by name or as a number, and those about which the runs say nothing."""
    passed = [check.metric for check in view.hard_with(CheckOutcome.PASS)]
    unknown = [check.metric for check in view.hard_with(CheckOutcome.NOT_JUDGED)]
    said = [f"ok: {', '.join(passed)}" if names else f"hard gates ok: {len(passed)}"] if passed else []
    return [*said, f"not known: {', '.join(unknown)}"] if unknown else said


def whole(study: Study, width: int, *, full: bool) -> Iterator[RenderableType]:
    """Verdict, instabilities, performance, layers, memory, profile, notes."""
    study = shown(study)
    if study.decision is None:
        yield Text.assemble(("NO VERDICT", "bold yellow"), "  ", (study.subject, "bold"))
        yield indented(study.no_verdict)
    else:
        yield from verdict(replace(study.decision, warnings=()), width, full=full)  # they stand under `unstable`
    yield ""
    sections = {
        "unstable": unstable(study),
        "speed": performance(study),
        "layers": layers(study, full=full),
        "memory": memory(study),
        "profile": profile(study),
        "notes": [*study.notes, *([f"No longer in the store: {', '.join(study.gone)}."] if study.gone else [])],
    }
    for title, said in sections.items():
        lines = list(said)
        yield from labelled_lines(title, lines if full else cut(lines, LISTED))


def unstable(study: Study) -> Iterator[str]:
    """What went wrong, by cause: when, what it means, what to try."""
    yield from (one.said() for one in instabilities.grouped(study.instabilities))
    if not study.instabilities:
        yield "nothing seen" if study.candidates else "no run to look at"


def performance(study: Study) -> Iterator[str]:
    """Each performance metric on both sides, or the candidate's alone."""
    for one in study.performance:
        now = formatting.quantity(one.candidate, one.unit)
        if one.baseline is None:
            yield f"{one.metric}: {now}"
        else:
            by = formatting.change(one.change, relative=True, unit="")
            yield f"{one.metric}: {formatting.quantity(one.baseline, one.unit)} → {now} ({by})"


def layers(study: Study, *, full: bool) -> Iterator[str]:
    """How far the weights moved: all layers in a line, and each that stands out; with `full` each of them."""
    if said := layer_drift.summary(study.layer_drift):
        yield said
        some = study.layer_drift if full else layer_drift.standing_out(study.layer_drift)
        yield from map(layer_drift.sentence, some)


def memory(study: Study) -> Iterator[str]:
    """Peak memory by algorithm."""
    for one in study.memory.peaks:
        runs = formatting.counted(one.runs, "run")
        yield f"{one.algo.upper()}: peak {formatting.quantity(one.median, 'MiB')} ({runs})"
    yield from study.memory.said


def profile(study: Study) -> Iterator[str]:
    """The phases of a step, with the champion's share."""
    if study.profiled is None:
        return
    own, champion = study.profiled.profile, study.profiled.champion
    theirs = {cost.name: cost for cost in champion.phases} if champion else {}
    for cost in own.phases:
        there = f" (champion {theirs[cost.name].ms:.1f} ms)" if cost.name in theirs else ""
        yield f"{cost.name}: {cost.ms:.1f} ms, {own.share(cost):.0%} of a step{there}"
    yield f"operators, modules, trace: canary profile {study.candidates[0].run_id}"


def cut(lines: Sequence[str], most: int) -> list[str]:
    """The first `most` lines, and how many more there are."""
    more = len(lines) - most
    return [*lines[:most], *([f"and {more} more"] if more > 0 else [])]


def indented(text: str, style: str = "") -> RenderableType:
    """A paragraph under the first line."""
    return Padding(Text(text, style=style), (0, 0, 0, 2))


def labelled_lines(label: str, lines: Sequence[str]) -> Iterator[RenderableType]:
    """A label with lines beside it; nothing if there are none."""
    if any(lines):
        yield labelled(label, "\n".join(lines))


def labelled(label: str, text: str | Text) -> RenderableType:
    """`label   text`, with continuation lines under the text."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=12)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"  {label}", style="bold"), text if isinstance(text, Text) else Text(text))
    return grid
