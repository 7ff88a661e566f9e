"""The boxes that Stable-Baselines3 prints, one for each row: `| rollout/ | |`, `|    ep_rew_mean | 0.03 |`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from canary_mlflow.files.columns import Columns
from canary_mlflow.files.from_columns import history_of
from canary_mlflow.files.history import History
from canary_mlflow.files.limits import MAX_ROWS, too_many_rows
from canary_mlflow.files.names import is_canonical, name_of_column, step_column
from canary_mlflow.files.numbers import number

_EDGE = re.compile(r"-{10,}")
_CELLS = re.compile(r"\| ( *)([\w/]{1,60}) *\| ([^|]{0,60})\|")
_MOST = 100  # lines of a box


def read_boxes(path: Path, lines: Iterable[str], notes: list[str]) -> History | None:
    """The rows of the boxes that say their step; None if there are none."""
    columns = Columns(path)
    for row in _rows(lines):
        columns.add(row, columns.rows + 1)
        if columns.rows > MAX_ROWS:
            raise too_many_rows(path)
    return history_of(columns, "printed", notes) if columns.rows else None


def _rows(lines: Iterable[str]) -> Iterator[dict[str, float]]:
    row: dict[str, float] = {}
    section, inside = "", 0
    for line in lines:
        text = line.strip()
        if _EDGE.fullmatch(text):
            if step_column(row) and any(is_canonical(name_of_column(name)) for name in row):
                yield row
            row, section, inside = {}, "", 1
        elif inside and inside < _MOST and (cells := _CELLS.fullmatch(text)):
            inside += 1
            indented, name, value = cells[1], cells[2], cells[3].strip()
            if not value:
                section = name
            with suppress(ValueError):
                row[section + name if indented else name] = number(value)
        else:
            inside = 0
