"""The table of docs/measured/attacks.md: written from what was seen, or compared with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from guard_attack import NO_DOOR, REFUSED, Attack, Cell
from guard_modes import MODES
from workplace import ROOT

PAGE = ROOT / "docs" / "measured" / "attacks.md"
THREATS = ROOT / "docs" / "measured" / "threat-model.md"
ATTACKS, ACCESS = "attacks", "access"  # what the marks in the page are called
Seen = Mapping[tuple[str, str], Cell]


def word(cell: Cell) -> str:
    """What stands in the table of a cell."""
    return "none" if cell.outcome == NO_DOOR else cell.outcome


def rows(attacks: Sequence[Attack], seen: Seen) -> list[list[str]]:
    """Door, way and a word per mode."""
    unseen = Cell(outcome="?")
    return [[one.door, one.way, *(word(seen.get((one.name, mode), unseen)) for mode in MODES)] for one in attacks]


def lines_of(found: Sequence[Sequence[str]]) -> list[str]:
    """What is refused wherever its door exists, by the doors that offer it; and a table of the rest."""
    doors: dict[str, list[str]] = {}
    for door, way, *words in found:
        if set(words) <= {REFUSED, "none"}:
            doors.setdefault(way, []).append(door)
    ways: dict[str, list[str]] = {}
    for way, through in doors.items():
        ways.setdefault(" / ".join(through), []).append(way)
    lines = [f"* **{through}:** {'; '.join(each)}." for through, each in ways.items()]
    lines += ["", f"| door | way | {' | '.join(MODES)} |", "|---|---|" + "---|" * len(MODES)]
    return lines + [f"| {' | '.join(row)} |" for row in found if not set(row[2:]) <= {REFUSED, "none"}]


def write(attacks: Sequence[Attack], seen: Seen) -> None:
    """Put the table between the marks of the page."""
    put(ATTACKS, lines_of(rows(attacks, seen)))


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


def stated(lines: Sequence[str]) -> dict[tuple[str, str], list[str]]:
    """A word per mode of each door and way; what is refused wherever its door exists has that word in all modes."""
    found = {}
    for line in lines:
        if line.startswith("* "):
            doors, _, ways = line.removeprefix("* **").partition(":** ")
            found |= {
                (door, way): [REFUSED] * len(MODES) for door in doors.split(" / ") for way in ways[:-1].split("; ")
            }
        elif len(parts := [part.strip() for part in line.strip("|").split(" | ")]) == 2 + len(MODES):
            found[parts[0], parts[1]] = parts[2:]
    return found


def compare(attacks: Sequence[Attack], seen: Seen) -> list[str]:
    """Cells that were seen, and that the page tells otherwise."""
    there = stated(told(ATTACKS))
    wrong = []
    for attack in attacks:
        for number, mode in enumerate(MODES):
            cell = seen.get((attack.name, mode))
            if cell is None:
                continue  # left out of this run, or no PostgreSQL here
            words = there.get((attack.door, attack.way))
            refused = words is not None and set(words) <= {REFUSED, "none"} and word(cell) in (REFUSED, "none")
            if words is None or (words[number] != word(cell) and not refused):
                wrong.append(f"{attack.name}, {mode}: seen {word(cell)!r}, told {words and words[number]!r}")
    return wrong
