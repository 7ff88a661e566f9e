"""Finds out which kind of history a file is, by its content, not by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from canary_mlflow.errors import UsageError
from canary_mlflow.files import limits
from canary_mlflow.files.boxes import read_boxes
from canary_mlflow.files.events import event_files, read_events
from canary_mlflow.files.from_columns import SeveralPerEpoch
from canary_mlflow.files.history import History
from canary_mlflow.files.notebook import is_notebook
from canary_mlflow.files.numbers import json_value
from canary_mlflow.files.printed import read_printed
from canary_mlflow.files.ranks import other_ranks, rank_of
from canary_mlflow.files.rows_csv import csv_header, read_csv
from canary_mlflow.files.rows_json import broken, read_json, read_jsonl
from canary_mlflow.files.script_lines import read_script_lines
from canary_mlflow.files.source import TooMuch
from canary_mlflow.files.text import NotUtf8, is_utf16, opened, refuse_huge, rest_of
from canary_mlflow.files.within import rows_within
from canary_mlflow.shown import uncoloured

_Reader = Callable[[Path, Iterable[str], list[str]], History | None]
_JSON = re.compile(r"""\s*(\{\s*("|\}|$)|\[\s*([\[{"\]]|$))""")  # not "[INFO] ...", nor a Python dictionary


def read_history(path: Path) -> History:
    """Read `trainer_state.json`, JSONL with one object per row, or CSV with a step column; any of them gzipped.

    Also verl's JSONL, a JSON object with a list of rows or a list per metric in it, the chart of one run that wandb
    exported, what Transformers, verl or a script printed, a notebook with the table of a training, and TensorBoard's
    event files: one, or the folder of a run.

    NaN and Infinity may stand bare; null and an empty cell mean absent. Steps that go back are read as a resumed run:
    what was written later counts, and a note says so. Raises UsageError, one line, for what cannot be judged.
    """
    if files := event_files(path):
        return read_events(path, files)
    try:
        return _read(path)
    except SeveralPerEpoch:
        return _read(path, numbered=True)
    except NotUtf8:
        if logged := _logged(path):
            return logged
        raise


def _logged(path: Path) -> History | None:
    """What a training printed in another encoding, as consoles of Windows write it: the numbers are the same in all."""
    notes = ["is not UTF-8; its other characters are left out"]
    with opened(path, "replace") as text:
        json_like = _JSON.match(text.read(64)) is not None  # its steps stand in lines of their own
    with suppress(UsageError):
        return _printed(path, (read_printed,) if json_like else (read_printed, read_script_lines), notes, "replace")
    return None


def _printed(path: Path, readers: Iterable[_Reader], notes: list[str], errors: str = "strict") -> History | None:
    """What the first of the readers finds that finds anything, in the lines of one rank, without a terminal's
    colours."""
    with opened(path, errors) as text:
        others, note = other_ranks(map(uncoloured, text))
    for reader in readers:
        with opened(path, errors) as text:
            plain = map(uncoloured, text)
            lines = (line for line in plain if rank_of(line) not in others) if others else plain
            if told := reader(path, lines, [*notes, *note]):
                return told
    return None


def _read(path: Path, *, numbered: bool = False) -> History:
    with opened(path) as text:
        notes = ["is UTF-16; read as such"] if is_utf16(text) else []
        first = next((line for line in text if not line.isspace()), "")
        if not _begins_json(first):
            return _read_text(path, text, first, notes, numbered)
        alone = _value(first)
        if isinstance(alone, Mapping) and not _is_whole(alone):
            return read_jsonl(path, text, first, notes, numbered=numbered)
        return _read_whole(path, text, first, notes, numbered)


def _read_text(path: Path, text: TextIO, first: str, notes: list[str], numbered: bool) -> History:
    """CSV, or what a training printed: lines of all kinds."""
    found: list[str] = []
    try:
        names, delimiter = csv_header(path, first, found)
    except UsageError:
        if told := _printed(path, (read_printed, read_boxes, read_script_lines), notes):
            return told
        raise
    return read_csv(path, text, names, delimiter, [*notes, *found], numbered=numbered)


def _read_whole(path: Path, text: TextIO, first: str, notes: list[str], numbered: bool) -> History:
    refuse_huge(path, b'"step"')
    try:
        whole = first + rest_of(text)
        if whole.count("{") + whole.count("[") > limits.MAX_ROWS:
            raise limits.too_many_rows(path)
        return read_json(path, json_value(whole), notes, numbered=numbered)
    except TooMuch:
        raise
    except ValueError as error:
        raise broken(path, error) from None
    except RecursionError:
        raise UsageError(f"{path}: is nested too deeply; expected the history of a run; check the file") from None


def _is_whole(alone: Mapping[str, Any]) -> bool:
    """Whether the object of the first line is more than a row: a run of its own."""
    return "log_history" in alone or is_notebook(alone) or rows_within(alone) is not None


def _begins_json(line: str) -> bool:
    return _JSON.match(line) is not None or _value(line) is not None


def _value(line: str) -> Any:
    """The line's value if it is a JSON value of its own."""
    try:
        return json_value(line)
    except (ValueError, RecursionError):
        return None
