"""The table of docs/guard.md: written from what was seen, or compared with it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from guard_attack import NO_DOOR, Attack, Cell
from guard_modes import MODES
from workplace import ROOT

PAGE = ROOT / "docs" / "guard.md"
THREATS = ROOT / "docs" / "threat-model.md"
ATTACKS, ACCESS = "attacks", "access"  # what the marks in the page are called
Seen = Mapping[tuple[str, str], Cell]


def word(cell: Cell) -> str:
    """What stands in a cell before the number of its answer."""
    if cell.outcome == NO_DOOR:
        return "none"
    return f"{cell.outcome} {cell.status}" if cell.status else cell.outcome


def rows(attacks: Sequence[Attack], seen: Seen) -> tuple[list[list[str]], list[str]]:
    """Door, way and a word per mode; and the answers, numbered as they come."""
    answers: list[str] = []
    found = []
    for attack in attacks:
        cells = []
        for mode in MODES:
            cell = seen.get((attack.name, mode), Cell(outcome="?"))
            number = ""
            if cell.answer:
                if cell.answer not in answers:
                    answers.append(cell.answer)
                number = f" ({answers.index(cell.answer) + 1})"
            cells.append(word(cell) + number)
        found.append([attack.door, attack.way, *cells])
    return found, answers


def write(attacks: Sequence[Attack], seen: Seen) -> None:
    """Put the table between the marks of the page."""
    found, answers = rows(attacks, seen)
    lines = [f"| door | way | {' | '.join(MODES)} |", "|---|---|" + "---|" * len(MODES)]
    lines += [f"| {' | '.join(row)} |" for row in found]
    lines += ["", "The answers seen:", ""]
    lines += [f"{number}. {as_markdown(answer)}" for number, answer in enumerate(answers, 1)]
    put(ATTACKS, lines)


def put(mark: str, lines: Sequence[str]) -> None:
    """Lines between two marks of the page."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, _, rest = PAGE.read_text().partition(begin)
    after = rest.partition(end)[2]
    PAGE.write_text(f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}")


def told(mark: str, page: Path = PAGE) -> list[str]:
    """The lines that stand there."""
    return (
        page.read_text().partition(f"<!-- {mark}: begin -->\n")[2].partition(f"\n<!-- {mark}: end -->")[0].splitlines()
    )


def as_markdown(answer: str) -> str:
    """An answer as it was, whatever it holds."""
    fence = "``" if "`" in answer else "`"
    return f"{fence}{answer}{fence}"


def compare(attacks: Sequence[Attack], seen: Seen) -> list[str]:
    """Cells that were seen, and that the page tells otherwise; answers are not compared, only what came of it."""
    there = {}
    for line in told(ATTACKS):
        parts = [part.strip() for part in line.strip("|").split(" | ")]
        if len(parts) == 2 + len(MODES):
            there[parts[0], parts[1]] = [re.sub(r" \(\d+\)$", "", part) for part in parts[2:]]
    wrong = []
    for attack in attacks:
        for number, mode in enumerate(MODES):
            cell = seen.get((attack.name, mode))
            if cell is None:
                continue  # left out of this run, or no PostgreSQL here
            cells = there.get((attack.door, attack.way))
            if cells is None or cells[number] != word(cell):
                wrong.append(f"{attack.name}, {mode}: seen {word(cell)!r}, told {cells and cells[number]!r}")
    return wrong
