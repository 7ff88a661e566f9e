"""The rows of `trainer_state.json`, of a JSON list, and of JSONL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.files.columns import Columns
from canary_mlflow.files.from_columns import history_of
from canary_mlflow.files.history import History
from canary_mlflow.files.limits import MAX_ROWS, too_many_rows
from canary_mlflow.files.notebook import is_notebook, read_notebook
from canary_mlflow.files.numbers import json_value
from canary_mlflow.files.source import TooMuch
from canary_mlflow.files.text import CHUNK, HistoryFile, refuse_huge, rest_of
from canary_mlflow.files.verl import is_verl, translate

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
