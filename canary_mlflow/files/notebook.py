"""A Jupyter notebook in which a model was trained: the table that Transformers shows instead of printing rows, or what
a cell printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.files.columns import Columns
from canary_mlflow.files.from_columns import history_of
from canary_mlflow.files.history import History
from canary_mlflow.files.lines import read_lines
from canary_mlflow.files.names import epoch_column, is_canonical, name_of_column, step_column
from canary_mlflow.files.numbers import number_or_none
from canary_mlflow.files.printed import read_printed
from canary_mlflow.gates.model.paradigm import Paradigm, is_policy_gradient, named_paradigm

_PLANNED = re.compile(r"<progress\b[^>]{0,200}\bmax=['\"](\d{1,15})['\"]")
_TRAINER = re.compile(r"\b(\w{0,40})Trainer\s{0,9}\(")
_CELL = re.compile(r"<t[hd]\b[^<>]*>([^<>]*)")
_NO_VALUE = {"", "no log"}  # what Transformers shows of a loss that is not logged yet
_LEFT_OUT = "..."  # what pandas shows instead of the middle rows of a long table

Rows = list[list[str]]


def is_notebook(body: Mapping[str, Any]) -> bool:
    """Whether the JSON is a notebook."""
    return isinstance(body.get("cells"), list) and "nbformat" in body


def read_notebook(path: Path, body: Mapping[str, Any], notes: list[str]) -> History:
    """The training in it of which the most is known. Raises UsageError if there is none, as in one that was saved
    without its outputs."""
    tables = [
        (*found, algo) for algo, cell in _cells(body) for page in _of_cell(cell, "text/html") for found in _tables(page)
    ]
    rows, planned, algo = max(
        tables, key=lambda found: (len(found[0]) - 1) * len(_known(found[0][0])), default=([], None, "")
    )
    shown = _of_table(path, rows, planned, len(tables), notes, algo) if len(rows) > 1 else None
    printed = _printed(path, body, notes, shown)
    found = max((one for one in (shown, printed) if one is not None), key=_values, default=None)
    if found is None:
        raise UsageError(
            f"{path}: a notebook without the output of a training that can be read; expected its table, or printed "
            "rows with a step and a loss or a reward; save it with its outputs"
        )
    # Code may have been changed since: what is shown counts.
    changed = named_paradigm(found.algo) is Paradigm.SUPERVISED and is_policy_gradient(found.series)
    return replace(found, algo="") if changed else found


def _of_table(path: Path, rows: Rows, planned: int | None, tables: int, notes: list[str], algo: str) -> History:
    columns = Columns(path)
    for number, cells in enumerate(rows[1:], 1):
        columns.add({name: _value(cell) for name, cell in zip(rows[0], cells, strict=False)}, number)
    others = f", the fullest of {tables}" if tables > 1 else ""
    found = history_of(columns, "notebook", [*notes, f"a table of a notebook{others}"], planned=planned)
    return replace(found, algo=algo)


def _known(names: Iterable[str]) -> list[str]:
    return [name for name in names if is_canonical(name_of_column(name))]


def _values(history: History) -> int:
    """How many values it has of what we know."""
    return sum(len(series.steps) for name, series in history.series.items() if is_canonical(name))


def _printed(path: Path, body: Mapping[str, Any], notes: list[str], table: History | None) -> History | None:
    """The fullest training that a cell printed; what cannot be judged counts only if there is nothing else."""
    found: list[History] = []
    refused: UsageError | None = None
    for algo, cell in _cells(body):
        lines = [line for text in _of_cell(cell, "text") for line in text.splitlines(keepends=True)]
        try:
            history = read_printed(path, lines, notes) or read_lines(path, lines, notes)
        except UsageError as error:
            refused = error
        else:
            found += [replace(history, algo=algo)] if history else []
    if refused and not found and table is None:
        raise refused
    fullest = max(found, key=_values, default=None)
    if fullest is None or len(found) == 1:
        return fullest
    return replace(fullest, notes=(f"the fullest of {len(found)} trainings that its cells printed", *fullest.notes))


def _cells(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The cells, each with the algorithm of the trainer that the code up to it made last: GRPO's table may hold nothing
    but a loss. "": it made none, or one whose name tells no algorithm."""
    algo = ""
    for cell in _mappings(body["cells"]):
        for name in _TRAINER.findall("".join(_texts(cell, "source"))):
            algo = name.lower() if named_paradigm(name) else ""
        yield algo, cell


def _of_cell(cell: Mapping[str, Any], kind: str) -> Iterator[str]:
    """A cell's outputs of one kind, `text` being what it printed."""
    for output in _mappings(cell.get("outputs")):
        yield from _texts(output if kind == "text" else output.get("data"), kind)


def _texts(holder: Any, key: str) -> Iterator[str]:
    found = holder.get(key) if isinstance(holder, Mapping) else None
    if isinstance(found, str | list):
        yield found if isinstance(found, str) else "".join(map(str, found))


def _mappings(values: Any) -> Iterator[Mapping[str, Any]]:
    yield from (value for value in values if isinstance(value, Mapping)) if isinstance(values, list) else ()


def _tables(page: str) -> Iterator[tuple[Rows, int | None]]:
    """The tables of a training, with the steps that it was to have."""
    planned = _PLANNED.search(page)
    for table in page.split("<table")[1:]:
        rows = [[unescape(cell).strip() for cell in _CELL.findall(row)] for row in table.split("<tr")[1:]]
        names = rows[0] if rows else []
        whole = not any(set(row) == {_LEFT_OUT} for row in rows)
        if whole and (step_column(names) or epoch_column(names)) and _known(names):
            yield rows, int(planned[1]) if planned and step_column(names) else None


def _value(cell: str) -> float | str | None:
    if cell.lower() in _NO_VALUE:
        return None
    found = number_or_none(cell)
    return cell if found is None else found
