"""The report on a terminal: verdict, what changed, what decides, what to do; with `full`, everything else too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from rich.console import Group, RenderableType
from rich.text import Text

from canary_mlflow.reports import causes, changes, facts, root_causes, wording
from canary_mlflow.reports.card import Card, Link, card_of
from canary_mlflow.reports.console import PLAIN_WIDTH, as_text, indented, labelled, print_on
from canary_mlflow.reports.decision import Decision, Question
from canary_mlflow.reports.evidence_table import STYLES, evidence
from canary_mlflow.reports.wording import WORSE
from canary_mlflow.shown import shown
from gates.model.rules import Role
from gates.model.verdict import CheckOutcome, Outcome
from gates.notes import CLOCK, OTHER_POLICY, UNCOUNTED

HEADINGS = {
    "PASS": "bold green",
    "BLOCK": "bold red",
    "INCONCLUSIVE": "bold yellow",
    "bootstrap": "bold cyan",
}
LINES = {Outcome.PASS: 16, Outcome.BLOCK: 20, Outcome.INCONCLUSIVE: 20}
"""A report that is not `full` leaves out metrics that are within their limits, to have no more lines at 100 columns."""

FEWEST_ROWS = 1
TIGHTER = ((changes.SHOWN, True, False), (changes.SHOWN, False, False), (3, False, False), (1, False, False),
           (1, False, True))  # fmt: skip
"""What `short` is asked for, one after the other, until the report fits."""
SHOWN_CAUSES = 2
SHOWN_NOTES = 2


def render(decision: Decision, *, width: int = PLAIN_WIDTH, full: bool = False) -> str:
    """The report as plain text of at most `width` columns."""
    return as_text(lambda columns: report(decision, columns, full=full), width)


def show(decision: Decision, stream: IO[str], *, full: bool = False) -> None:
    """Print the report on a stream."""
    print_on(stream, lambda columns: report(decision, columns, full=full))


def report(decision: Decision, width: int, *, full: bool = False) -> RenderableType:
    """All parts, in reading order."""
    return Group(*parts(decision, width, full=full))


def parts(decision: Decision, width: int, *, full: bool = False) -> Iterator[RenderableType]:
    """Verdict, what changed, hard gates that block, the figures, everything else, next step, links to the UI."""
    decision = shown(decision)
    if full:
        yield from everything(decision, width)
        return
    for most, gap, brief in TIGHTER:
        found = list(short(decision, width, most, gap=gap, brief=brief))
        if lines_of(found, width) <= LINES[decision.verdict.outcome]:
            break
    yield from found


def short(decision: Decision, width: int, most: int, *, gap: bool, brief: bool) -> Iterator[RenderableType]:
    """What decides, and one line for each other cause. `most`: differences to list. `gap`: whether a blank line follows
    the figures. `brief`: notes, advice and metrics that passed are counted, and need no row."""
    above = [*head(decision, most, brief=brief), *blockers(decision)]
    below = [*rest(decision, brief=brief), *steps(decision)]
    rows = wording.judged(decision)
    space = LINES[decision.verdict.outcome] - lines_of([*above, *below], width) - 2 - gap
    fewest = 0 if brief and not any(map(asks, rows)) else FEWEST_ROWS
    shown = chosen(decision, rows, space, fewest)
    if left := without_row(rows, shown):
        shown = chosen(decision, rows, space - 1, fewest)
        left = without_row(rows, shown)
    yield from above
    yield from [""] if shown or not brief else ()
    yield from evidence(shown, width, all_meanings=False) if shown else ()
    yield from [""] if shown and gap else ()
    yield from left_out(left, brief=brief)
    yield from below


def lines_of(found: Sequence[RenderableType], width: int) -> int:
    """How many lines these parts take at `width` columns."""
    return len(as_text(lambda _: Group(*found), width).splitlines())


def everything(decision: Decision, width: int) -> Iterator[RenderableType]:
    """The report with nothing left out."""
    yield from head(decision, most=10**6)
    yield from blockers(decision)
    rows = wording.judged(decision)
    yield from ("", *evidence(rows, width), "") if rows else ()
    yield indented(wording.evidence_note(decision), style="dim")
    for names, why in wording.by_reason(wording.not_judged(decision)):
        yield indented(f"Not judged: {', '.join(names)}: {wording.sentence(why)}", style="dim")
    yield ""
    yield from labelled_lines("hard gates", ["; ".join(hard_gates(decision, names=True))])
    yield from labelled_lines("also", obstacles(decision))
    yield from labelled_lines("causes", root_causes.listed(decision))
    yield from labelled_lines("notes", decision.verdict.notes)
    yield from labelled_lines("warnings", [causes.sentence(one) for one in causes.of_warnings(decision.warnings)])
    yield from labelled_lines("differs", [changes.difference(one) for one in decision.verdict.differences])
    yield from steps(decision)


def head(decision: Decision, most: int = changes.SHOWN, *, brief: bool = False) -> Iterator[RenderableType]:
    """The card down to its rows. `most`: how many differences and causes there is space for. `brief`: without what the
    exact differences may come from."""
    card = card_of(decision)
    yield Text.assemble((card.heading, HEADINGS[card.word]), "  ", (card.title, "bold"))
    yield indented(card.reason)
    exact = facts.exact(decision, min(most, facts.SHOWN), origins=not brief)
    changed = changes.changed(decision, most)
    cause = root_causes.because(decision, 2 if most > 1 else 1)
    yield from (indented(said) for said in (exact, changed, cause) if said)


def blockers(decision: Decision) -> Iterator[RenderableType]:
    """The hard gates that block, except those that the verdict's reason already names."""
    blocked = [check for check in wording.hard_gates(decision) if check.outcome is CheckOutcome.BLOCK]
    for check in blocked:
        if wording.sentence(check.reason).rstrip(".") not in wording.reason(decision):
            yield indented(f"BLOCK {check.named}: {wording.sentence(check.reason)}", style=STYLES[check.outcome])


def asks(row: wording.Row) -> bool:
    """Whether a deciding row needs a look: it blocks, is undecided, warns or is worse. One that passed does not; nor
    does one that nothing could judge, which the reason or the line `not judged` names."""
    return not row.advisory and (row.outcome not in (CheckOutcome.PASS, CheckOutcome.NOT_JUDGED) or row.word == WORSE)


def chosen(decision: Decision, rows: Sequence[wording.Row], space: int, fewest: int) -> list[wording.Row]:
    """The rows that a short report shows, at least `fewest`: all that ask for attention, if no hard gate decided, and
    as many of the other deciding ones as there is space for, those that passed first."""
    hard = any(check.outcome is CheckOutcome.BLOCK for check in wording.hard_gates(decision))
    deciding = [row for row in rows if not row.advisory]
    if hard:
        blocked = [row for row in deciding if row.outcome is CheckOutcome.BLOCK]
        return deciding if len(deciding) <= space else blocked[: max(fewest, space)]
    first = [row for row in deciding if asks(row)]
    passed = [row for row in deciding if row.outcome is CheckOutcome.PASS]
    others = [row for row in deciding if row not in first and row not in passed]
    warned = [row for row in rows if row.advisory and row.outcome is CheckOutcome.WARN]
    space -= sum(not row.in_reason for row in first)  # one line for the meaning of each
    picked = [*first, *passed, *others, *warned][: max(fewest, space)]
    return [row for row in rows if row in picked]


def without_row(rows: Sequence[wording.Row], shown: Sequence[wording.Row]) -> list[wording.Row]:
    """The deciding metrics that are not shown."""
    return [row for row in rows if row not in shown and not row.advisory]


def left_out(rows: Sequence[wording.Row], *, brief: bool) -> Iterator[RenderableType]:
    """The deciding metrics without a row: `unclear: eval_loss; ok: step_cost, peak_memory`. `brief`: those that passed
    are counted."""
    by_word: dict[str, list[wording.Row]] = {}
    for row in rows:
        by_word.setdefault(row.word, []).append(row)
    said = [
        f"{word}: {len(found)}"
        if brief and found[0].outcome is CheckOutcome.PASS
        else f"{word}: {', '.join(row.metric for row in found)}"
        for word, found in by_word.items()
    ]
    yield from labelled_lines("metrics", ["; ".join(said)] if said else [])


def rest(decision: Decision, *, brief: bool) -> Iterator[RenderableType]:
    """What else a short report says: one line for each cause. `brief`: notes and advice are counted, but for another
    policy and costs that nothing else tells of."""
    said = [wording.runs_note(decision), *hard_gates(decision, names=False)]
    yield labelled("runs", "; ".join(said))
    yield from labelled_lines("also", obstacles(decision))
    notes = decision.verdict.notes
    clocks = [note.partition(" (")[0] for note in notes if note.startswith(CLOCK)]
    advice = wording.advice_note(decision, names=not brief)
    yield from labelled_lines("advice", ["; ".join(part for part in (*clocks, advice) if part)])
    silent = [check for check in wording.not_judged(decision) if check.role is Role.GATE]
    yield from labelled_lines("not judged", [", ".join(check.metric for check in silent)])
    others = [note for note in notes if not note.startswith(CLOCK)]
    first = [note for note in others if note.startswith(OTHER_POLICY) or note.endswith(UNCOUNTED)]
    others = [note for note in others if note not in first]
    counted = [f"{len(others)}{' more' * bool(first)}, shown by --full"] if others else []
    yield from labelled_lines("notes", [*first, *(counted if brief else cut(others, SHOWN_NOTES))])
    warned = [causes.sentence(one, explained=False) for one in causes.of_warnings(decision.warnings)]
    yield from labelled_lines("warnings", cut(warned, SHOWN_CAUSES))


def hard_gates(decision: Decision, *, names: bool) -> list[str]:
    """The hard gates that passed, by name or as a number, and those about which the runs say nothing."""
    checks = wording.hard_gates(decision)
    passed = [check.metric for check in checks if check.outcome is CheckOutcome.PASS]
    unknown = [check.metric for check in checks if check.outcome is CheckOutcome.NOT_JUDGED]
    said = [f"ok: {', '.join(passed)}" if names else f"hard gates ok: {len(passed)}"] if passed else []
    return [*said, f"not known: {', '.join(unknown)}"] if unknown else said


def obstacles(decision: Decision) -> list[str]:
    """Sentences on what else makes the comparison impossible."""
    return [wording.sentence(check.reason) for check in wording.obstacles(decision)]


def cut(lines: Sequence[str], most: int) -> list[str]:
    """The first `most` lines, and how many more there are."""
    more = len(lines) - most
    return [*lines[:most], *([f"and {more} more"] if more > 0 else [])]


def labelled_lines(label: str, lines: Sequence[str]) -> Iterator[RenderableType]:
    """A label with lines beside it; nothing if there are none."""
    if any(lines):
        yield labelled(label, "\n".join(lines))


def steps(decision: Decision) -> Iterator[RenderableType]:
    """What to do now, and where to look: the end of the card."""
    card = card_of(decision)
    yield labelled(card.label.lower(), next_step(card))
    yield from (labelled("open", where(one)) for one in card.links)
    yield labelled("details", details(decision))


def next_step(card: Card) -> Text:
    """The sentence on the next step, with its commands in colour."""
    return Text.assemble(*((piece, "cyan" if command else "") for piece, command in card.steps))


def where(link: Link) -> str:
    """A link as lines."""
    needs = f" ({link.needs})" if link.needs else ""
    return f"{link.command}\nthen {link.address}" if link.command else f"{link.address}{needs}"


def details(decision: Decision) -> str:
    """The command or option that shows everything."""
    if decision.session_id and decision.question is not Question.FILES:
        return f"canary report {decision.session_id} --full"
    return "--full"
