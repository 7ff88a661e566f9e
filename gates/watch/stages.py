"""Columns that say which stage of a curriculum a row belongs to."""

from __future__ import annotations

import math
import re

_WORD = re.compile(r"[^a-z]+")
_STAGE = frozenset(("stage", "phase", "difficulty", "curriculum"))
_COUNTED = frozenset(("idx", "index", "id", "name", "num", "numeric"))  # may follow: `current_stage_idx`
_MANY = 100  # values; a column that has had more is none of stages


def is_stage(name: str) -> bool:
    """Whether a column of this name says which stage of a curriculum a row belongs to: `curriculum_stage`, `phase`,
    `curriculum/current_stage_idx`, `task_level`; not a `noise_level`."""
    words = [word for word in _WORD.split(name.lower().removeprefix("trl/")) if word]
    while words and words[-1] in _COUNTED:
        del words[-1]
    return bool(words) and (words[-1] in _STAGE or words in (["level"], ["task", "level"], ["curriculum", "level"]))


class Stage:
    """The value of one such column.

    Another value begins a stage if it is new and the one before lasted `rows` rows: one that changes sooner is drawn
    for each row or adapts to the policy, and one that comes back is that of an evaluation.
    """

    __slots__ = ("_known", "_least", "_rows", "_value")

    def __init__(self, rows: int) -> None:
        self._least = rows
        self._rows = 0
        self._value: float | None = None
        self._known: set[float] = set()

    def begins(self, value: float) -> bool:
        """Take the next value; whether another stage begins with it."""
        if value == self._value or not math.isfinite(value):
            self._rows += 1
            return False
        new = value not in self._known and 0 < len(self._known) < _MANY
        lasted, self._rows, self._value = self._rows, 1, value
        if len(self._known) < _MANY:
            self._known.add(value)
        return new and lasted >= self._least
