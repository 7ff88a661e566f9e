"""The rows of a CSV file with a step column."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

from canary_mlflow.errors import UsageError
from canary_mlflow.files.columns import Columns
from canary_mlflow.files.from_columns import history_of
from canary_mlflow.files.history import History
from canary_mlflow.files.limits import MAX_COLUMNS, MAX_ROWS, too_many_columns, too_many_rows
from canary_mlflow.files.names import STEP_NAMES, epoch_column, step_column
from canary_mlflow.files.numbers import number_or_none
from canary_mlflow.files.text import HistoryFile, refuse_huge

_DELIMITERS = ",;\t"
_ABSENT = frozenset(("", "None", "null", "NULL", "N/A", "n/a", "-"))  # what writers put where there is no value
_LFS = "version https://git-lfs.github.com/spec/"  # how a pointer to a file begins that Git LFS keeps elsewhere


def read_csv(file: HistoryFile) -> History | None:
    """One row per step, after a header. None if the file begins with no header that has a step; `file.refused` says
    why."""
    path, found = file.path, list[str]()
    with file.opened() as (first, rest):
        try:
            names, delimiter = _header(path, first, found)
        except UsageError as error:
            file.refused = error
            return None
        columns = _read(path, rest, names, delimiter, numbered=file.numbered)
    return history_of(columns, "csv", [*file.notes, *found])


def _header(path: Path, header: str, notes: list[str]) -> tuple[list[str], str]:
    """The names of the columns, and what stands between them: comma, semicolon or tab. Raises UsageError if this is no
    header with a step."""
    delimiter = max(_DELIMITERS, key=header.count)
    try:
        names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter))]
    except csv.Error:
        names = []
    if header.startswith(_LFS):
        raise UsageError(f"{path}: a pointer of Git LFS; expected the file that it stands for; run git lfs pull")
    if len(names) < 2 or names[0][:1].isdigit():  # the time at which a line was logged names no column
        raise UsageError(
            f"{path}: neither JSON nor CSV (it begins {header.strip()[:40]!r}); expected trainer_state.json, JSONL or "
            "CSV with a step column, or lines such as `step 10 | loss: 2.31`, five or more"
        )
    if len(names) > MAX_COLUMNS:
        raise too_many_columns(path)
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise UsageError(
            f"{path}: the header has {', '.join(twice)[:100]} more than once; expected different names; rename one"
        )
    names = _of_one_run(path, names, notes)
    if step_column(names) is None and epoch_column(names) is None:
        raise UsageError(f"{path}: no step column; found {', '.join(names)[:100]}; expected one named {STEP_NAMES}")
    return names, delimiter


def _read(path: Path, rest: TextIO, names: list[str], delimiter: str, *, numbered: bool) -> Columns:
    refuse_huge(path, b"\n")
    columns = Columns(path, numbered=numbered)
    try:
        for number, cells in enumerate(csv.reader(rest, delimiter=delimiter), 2):
            if len(cells) > len(names):
                raise UsageError(
                    f"{path}: row {number} has {len(cells)} cells; expected {len(names)} as in the header; fix it"
                )
            if cells:
                columns.add({name: _value(cell) for name, cell in zip(names, cells, strict=False) if name}, number)
            if number > MAX_ROWS + 1:
                raise too_many_rows(path)
    except csv.Error as error:
        raise UsageError(f"{path}: is not CSV ({error}); expected a header and one row per step; fix it") from None
    return columns


def _of_one_run(path: Path, names: list[str], notes: list[str]) -> list[str]:
    """The metrics of a chart that wandb exported: `RUN - metric` beside the step, with `RUN - metric__MIN` and `__MAX`,
    which get an empty name. Raises UsageError for the chart of several runs."""
    split = {name: name.rpartition(" - ") for name in names}
    runs = list(dict.fromkeys(run for run, mark, _ in split.values() if mark))
    others = [name for name, (_, mark, _) in split.items() if not mark]
    if not runs or len(others) != 1 or step_column(others) is None:
        return names
    if len(runs) > 1:
        some = ", ".join(runs[:3]) + (", …" if len(runs) > 3 else "")
        raise UsageError(f"{path}: holds {len(runs)} runs ({some[:100]}); expected one; export each by itself")
    notes.append(f"a chart of the run {runs[0]}, exported from wandb")
    return ["" if metric.endswith(("__MIN", "__MAX")) else metric for _, _, metric in split.values()]


def _value(cell: str) -> Any:
    """A cell's number, or its text, which the columns then judge; None if it has no value."""
    found, text = number_or_none(cell), cell.strip()
    return found if found is not None else None if text in _ABSENT else text
