"""One attack, and its outcome in one word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from guard_doors import Refused, plain
from guard_scene import Scene, findings, put_back, tables, what_counts

REFUSED, DETECTED, OPEN, NOTHING, NO_DOOR = "refused", "detected", "open", "no effect", "no such door"
RANK = {NO_DOOR: 0, REFUSED: 0, NOTHING: 0, DETECTED: 1, OPEN: 2}
EVERYWHERE = ("embedded", "server", "split")  # parts of the names of modes
SERVERS = ("server", "split")


@dataclass(frozen=True)
class Attack:
    """`worst`: the worst that may come of it. `where`: modes in which the door exists, by a part of their names.
    `undoes`: it puts back itself what it moved, so that afterwards nothing shows. `told`: being refused is a row of the
    ledger itself, such as a BLOCK."""

    door: str
    way: str
    act: Callable[[Scene], Any]
    worst: str = REFUSED
    where: tuple[str, ...] = EVERYWHERE
    undoes: bool = False
    told: bool = False

    @property
    def name(self) -> str:
        return f"{self.door}: {self.way}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What came of an attack, and the answer."""

    outcome: str
    status: int | None = None
    answer: str = ""


def carry_out(scene: Scene, attack: Attack) -> Cell:
    """Attack, and judge by what is there afterwards rather than by the answer. What was moved is put back."""
    if not any(part in scene.mode.name for part in attack.where):
        return Cell(outcome=NO_DOOR)
    before = tables(scene.mode)
    known: set[str] | None = None if attack.worst == REFUSED else findings(scene)
    refused: Refused | None = None
    answer = ""
    try:
        answer = plain(str(attack.act(scene)))
    except Refused as error:
        refused = error
    after = tables(scene.mode)
    same = what_counts(before, rows=not attack.told) == what_counts(after, rows=not attack.told)
    if refused is not None and same:
        if attack.told:
            put_back(scene.mode, before)
        return Cell(outcome=REFUSED, status=refused.status, answer=plain(refused.message))
    named = sorted(findings(scene) - (known or set()))
    if named or not same:
        put_back(scene.mode, before)
    if named:
        return Cell(outcome=DETECTED, answer=plain(named[0]))
    return Cell(outcome=NOTHING if same and not attack.undoes else OPEN, answer=answer[:200])
