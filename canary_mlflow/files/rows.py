"""The rows of CSV files, of `trainer_state.json`, of a JSON list, and of JSONL."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from canary_mlflow.errors import UsageError
from canary_mlflow.files.columns import Columns
from canary_mlflow.files.from_columns import history_of
from canary_mlflow.files.history import History
from canary_mlflow.files.names import STEP_NAMES, epoch_column, is_verl, step_column, translate
from canary_mlflow.files.notebook import is_notebook, read_notebook
from canary_mlflow.files.numbers import json_value, number_or_none
from canary_mlflow.files.source import MAX_COLUMNS, MAX_ROWS, TooMuch, too_many_columns, too_many_rows
from canary_mlflow.files.text import CHUNK, HistoryFile, refuse_huge, rest_of

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


_JSON = re.compile(r"""\s*(\{\s*("|\}|$)|\[\s*([\[{"\]]|$))""")  # not "[INFO] ...", nor a Python dictionary


def read_json(file: HistoryFile) -> History | None:
    """A trainer's state, a list of rows, or a notebook: one JSON value."""
    if not _begins_json(file) or _is_row(file.alone):
        return None
    path = file.path
    refuse_huge(path, b'"step"')
    with file.opened() as (first, text):
        try:
            whole = first + rest_of(text)
            if whole.count("{") + whole.count("[") > MAX_ROWS:
                raise too_many_rows(path)
            body = json_value(whole)
        except TooMuch:
            raise
        except ValueError as error:
            raise _broken(path, error) from None
        except RecursionError:
            raise UsageError(f"{path}: is nested too deeply; expected the history of a run; check the file") from None
    state = body if isinstance(body, Mapping) else {"log_history": body}
    if "log_history" not in state and is_notebook(state):
        return read_notebook(path, state, file.notes)
    rows = state.get("log_history")
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        found = f"keys {', '.join(map(str, state))}"[:100] if state is body else "a list with other things than objects"
        raise UsageError(
            f"{path}: JSON without a log_history ({found}); expected trainer_state.json or one object per line"
        )
    columns = Columns(path, row_word="entry" if state is body else "row", numbered=file.numbered)
    columns.add_all(rows, 1)
    kind = "trainer_state" if state is body else "json"
    return history_of(columns, kind, file.notes, planned=state.get("max_steps"))


def _begins_json(file: HistoryFile) -> bool:
    return _JSON.match(file.first) is not None or file.alone is not None


def _is_row(value: Any) -> bool:
    """Whether the first line is an object of its own, and no more than a row."""
    return isinstance(value, Mapping) and "log_history" not in value and not is_notebook(value)


def read_jsonl(file: HistoryFile) -> History | None:
    """One JSON object per line; a last line that was cut off in writing is left out."""
    if not _is_row(file.alone):
        return None
    path, notes = file.path, list(file.notes)
    refuse_huge(path, b"\n")
    columns = Columns(path, row_word="line", numbered=file.numbered)
    number, kind = 1, "jsonl"
    with file.opened() as (first, rest):
        some = [first]
        while some := [*some, *rest.readlines(CHUNK)]:  # a call of the parser per line takes far longer
            rows = _together(some)
            if rows is not None and is_verl(rows[0]):
                kind = "jsonl of verl"
                columns.add_all(map(translate, rows), number)
            elif rows is not None:
                columns.add_block(rows, number)
            else:
                for at, row in _line_by_line(path, some, number, notes):
                    columns.add(translate(row) if is_verl(row) else row, at)
            number, some = number + len(some), []
            if columns.rows > MAX_ROWS:
                raise too_many_rows(path)
    return history_of(columns, kind, notes)


def _together(lines: list[str]) -> list[Any] | None:
    """The lines' objects by one call of the parser; None if one of them is blank, invalid or not an object."""
    try:
        rows: list[Any] = json.loads(f"[{','.join(lines)}]")
    except (ValueError, RecursionError):  # also a number of thousands of digits
        return None  # read again line by line, which finds the bad one
    return rows if len(rows) == len(lines) and all(type(row) is dict for row in rows) else None


def _line_by_line(path: Path, lines: list[str], number: int, notes: list[str]) -> Iterator[tuple[int, Any]]:
    for at, line in enumerate(lines, number):
        if line.isspace():
            continue
        try:
            row = json_value(line)
        except (ValueError, RecursionError) as error:
            # A writer ends each row with a line break: without one the row was not finished.
            if at > 1 and not line.endswith("\n"):
                notes.append(f"line {at} is cut off; read without it")
                return
            raise UsageError(
                f"{path}: line {at} is not JSON ({error}); expected one object per line; fix or remove it"
            ) from None
        if not isinstance(row, dict):
            raise UsageError(
                f"{path}: line {at} is {type(row).__name__}; expected one JSON object per line; fix that line"
            )
        yield at, row


def _broken(path: Path, error: ValueError) -> UsageError:
    """What to say of JSON that does not parse: most are files whose writing was cut short."""
    if not isinstance(error, json.JSONDecodeError):
        return UsageError(f"{path}: cannot be read as JSON ({error}); expected numbers; fix that value")
    cut = error.pos >= len(error.doc.rstrip()) - 1 or error.msg.startswith("Unterminated")
    return UsageError(
        f"{path}: {'is cut off' if cut else 'is not JSON'} (line {error.lineno}: {error.msg}); "
        "expected a whole trainer_state.json or one object per line; copy it again"
    )
