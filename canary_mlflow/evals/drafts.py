"""The tables of a harness's results while they are read: what all readers fill."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.evals.files import EvalFile, at
from canary_mlflow.gates.model.items import Item, Table
from canary_mlflow.shown import cut

GroupOf = Callable[[str], str | None]
"""Benchmark → the path in a record that names an item's group; None if nobody says it."""
LONGEST = 400
"""Characters of a text that is kept for readers."""


@dataclass(frozen=True)
class Contents:
    """What a reader found: the tables, and the files that they came from. `loaded`: the weights, as the harness names
    them, or ""."""

    tables: Sequence[Table]
    files: Sequence[EvalFile]
    loaded: str = ""


Reader = Callable[[EvalFile, GroupOf], Contents | None]
"""None if the file is in another format."""


@dataclass
class Draft:
    """One table. `record`: of an item, in which `group` is a path."""

    benchmark: str
    source: str
    path: Path
    group: str | None
    higher: bool = True
    run: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    items: dict[str, Item] = field(default_factory=dict)

    def add(self, key: str, score: object, record: object, *, prompt: str, answer: str, asked: Any, said: Any) -> None:
        """Take one answer: another one to the same key is a repeat."""
        group = key
        if self.group is not None:
            if (named := at(record, self.group)) is None:
                raise UsageError(
                    f"{self.path}: item {key[:40]} has no {self.group}; expected the group of each item; name another"
                )
            group = str(named)
        texts = {"asked": cut(text(asked), LONGEST), "said": cut(text(said), LONGEST)}
        item = Item(scores=(score_of(score),), group=group, prompt=prompt, answer=answer, **texts)
        self.items[key] = self.items[key].with_repeat(item) if key in self.items else item

    def table(self) -> Table:
        """What was read."""
        told = {name: value for name, value in vars(self).items() if name not in ("path", "group")}
        return Table(**told, grouped=self.group or "")


def joined_facts(one: Mapping[str, str], other: Mapping[str, str], unknown: str) -> dict[str, str]:
    """Facts of two answers or files; where they differ, both values, which no side with one has. `unknown`: what
    stands for a fact that one of them lacks, "" to leave that open."""
    found = {}
    for key in one.keys() | other.keys():
        values = {one.get(key, unknown), other.get(key, unknown)}
        found[key] = ", ".join(sorted(values - {""} or {""}))
    return found


def score_of(value: object) -> float | None:
    """The score; None for what is no finite number, which is an error of the harness."""
    with suppress(OverflowError):  # a whole number beyond all floats
        if isinstance(value, bool | int | float) and math.isfinite(value):
            return float(value)
    return None


def text(value: Any) -> str:
    """A value as a reader sees it."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, default=str)


def facts(found: Mapping[str, object]) -> dict[str, str]:
    """Facts as texts; what is not recorded is left out."""
    return {key: text(value) for key, value in found.items() if value is not None}
