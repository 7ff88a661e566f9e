"""The table of docs/measured/threat-model.md: each actor and each threat has an outcome and a proof that exists.

That the tests which it names exist is checked by tests/test_docs.py, as for every page.
"""

from __future__ import annotations

import re

from guard_attack import DETECTED, OPEN, RANK
from guard_attacks import ATTACKS
from guard_table import THREATS, told

WHO = ["trainer", "editor", "registry administrator", "database owner", "host owner"]
WHAT = ["metrics", "runs", "weights", "policy", "ledger", "keys", "time"]
WORST = {"prevented": 0, "detected": RANK[DETECTED], "not covered": RANK[OPEN]}


def parts() -> tuple[list[list[str]], dict[int, str]]:
    """The cells of the table, line by line, and the notes by number."""
    lines = told("threats", THREATS)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    notes = re.split(r"^(\d+)\. ", "\n".join(line for line in lines if not line.startswith("|")), flags=re.MULTILINE)
    return cells, {int(number): " ".join(text.split()) for number, text in zip(notes[1::2], notes[2::2], strict=True)}


def test_every_cell_has_a_word_and_every_word_a_note() -> None:
    (head, _, *lines), notes = parts()
    assert head == ["what", *WHO]
    assert [line[0] for line in lines] == WHAT
    found = [re.fullmatch(r"(prevented|detected|not covered) \((\d+)\)", cell) for line in lines for cell in line[1:]]
    assert len(found) == len(WHO) * len(WHAT)
    assert all(found), lines
    assert sorted({int(one[2]) for one in found if one}) == sorted(notes) == list(range(1, len(notes) + 1))


def test_every_note_names_a_test_or_an_attack_that_is_there() -> None:
    known = {attack.name: attack for attack in ATTACKS}
    for number, note in parts()[1].items():
        attacks = re.findall(r"attack `([^`]+)`", note, flags=re.IGNORECASE)
        assert attacks or "::test_" in note, number
        assert [name for name in attacks if name not in known] == []


def test_no_cell_is_better_than_the_first_attack_that_it_names() -> None:
    (_, _, *lines), notes = parts()
    worst = {attack.name: RANK[attack.worst] for attack in ATTACKS}
    for line in lines:
        for cell in line[1:]:
            word, number = cell.rstrip(")").split(" (")
            if named := re.findall(r"attack `([^`]+)`", notes[int(number)], flags=re.IGNORECASE):
                assert worst[named[0]] <= WORST[word], (line[0], cell, named[0])
