"""The rows of `trainer_state.json`, of a JSON list, and of JSONL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from canary_mlflow.errors import UsageError
from canary_mlflow.files.columns import Columns
from canary_mlflow.files.from_columns import history_of
from canary_mlflow.files.history import History
from canary_mlflow.files.limits import MAX_ROWS, too_many_rows
from canary_mlflow.files.notebook import is_notebook, read_notebook
from canary_mlflow.files.numbers import json_value
from canary_mlflow.files.text import refuse_huge
from canary_mlflow.files.verl import is_verl, translate
from canary_mlflow.files.within import rows_within

_AT_ONCE = 1 << 21  # characters per call of the JSON parser: a call per line takes far longer


def read_json(path: Path, body: Any, notes: list[str], *, numbered: bool = False) -> History:
    """A trainer's state, a list of rows, or an object that holds one."""
    state = body if isinstance(body, Mapping) else {"log_history": body}
    rows = state.get("log_history")
    if rows is None and is_notebook(state):
        return read_notebook(path, state, notes)
    if rows is None and (within := rows_within(state)):
        body, note = within
        return read_json(path, body, [*notes, note], numbered=numbered)
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        found = f"keys {', '.join(map(str, state))}"[:100] if state is body else "a list with other things than objects"
        raise UsageError(
            f"{path}: JSON without a log_history ({found}); expected trainer_state.json or one object per line"
        )
    columns = Columns(path, row_word="entry" if state is body else "row", numbered=numbered)
    columns.add_all(rows, 1)
    return history_of(columns, "trainer_state" if state is body else "json", notes, planned=state.get("max_steps"))


def read_jsonl(path: Path, rest: TextIO, first: str, notes: list[str], *, numbered: bool) -> History:
    """One JSON object per line; a last line that was cut off in writing is left out."""
    refuse_huge(path, b"\n")
    columns = Columns(path, row_word="line", numbered=numbered)
    number, kind = 1, "jsonl"
    some = [first]
    while some := [*some, *rest.readlines(_AT_ONCE)]:
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


def broken(path: Path, error: ValueError) -> UsageError:
    """What to say of JSON that does not parse: most are files whose writing was cut short."""
    if not isinstance(error, json.JSONDecodeError):
        return UsageError(f"{path}: cannot be read as JSON ({error}); expected numbers; fix that value")
    cut = error.pos >= len(error.doc.rstrip()) - 1 or error.msg.startswith("Unterminated")
    return UsageError(
        f"{path}: {'is cut off' if cut else 'is not JSON'} (line {error.lineno}: {error.msg}); "
        "expected a whole trainer_state.json or one object per line; copy it again"
    )
