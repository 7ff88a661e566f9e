"""What a training printed to the console, among lines of all kinds: a Python dictionary per logged row (Transformers,
TRL), or a JSON object, or `step:1 - name:value - …` (verl)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from canary_mlflow.files.columns import OF_TRAINING, Columns, unreadable
from canary_mlflow.files.from_columns import history_of
from canary_mlflow.files.history import History
from canary_mlflow.files.names import (
    EPOCH,
    ROUNDED,
    is_canonical,
    is_rounded_zero,
    is_verl,
    name_of_column,
    step_column,
    translate,
)
from canary_mlflow.files.numbers import json_value, number, number_or_none
from canary_mlflow.files.ranks import is_summary, one_each
from canary_mlflow.files.source import MAX_ROWS, too_many_rows

_ROW = re.compile(r"\{'[^{}]*\}")
_JSON_ROW = re.compile(r'\{"[^{}]*\}')  # a line of JSON among others
# Numbers are text from Transformers 5 on; a script may print `tensor(nan, device='cuda:0')` or `np.float64(2.5)`.
_PAIR = re.compile(r"'([^']+)': ?(?:[a-z][\w.]{0,40}\()?'?([^,'{}\[\]()]+)'?(?=\)?[,}])")
_SAID = re.compile(r"""['"]([^'"]+)['"]: ?['"]?(\w*)""")
_ABSENT = (None, "None", "null")
_OF_VERL = re.compile(r"\bstep:(\d+) - (.*)")
_VALUE = re.compile(r"(?<!\S)([^\s:]+):(?:np\.float\d+\()?([^\s()]+)")
_BROKEN = 60  # lines of one dictionary at most
_NUMBERED = "as printed, without steps: the rows are numbered"


def read_printed(path: Path, lines: Iterable[str], notes: list[str]) -> History | None:
    """The rows of the longest training among the lines; None if there are none."""
    longest, counted, trainings = Columns(path), False, 0
    each, ranks = one_each(_rows(path, lines))
    for rows in _trainings(each):
        trainings += 1
        columns, numbered = Columns(path), False
        for at, row in _numbered(rows):
            numbered = numbered or step_column(row) is None
            columns.add({"step": at, **row} if step_column(row) is None else row, columns.rows + 1)
            if columns.rows > MAX_ROWS:
                raise too_many_rows(path)
        if columns.rows >= longest.rows:
            longest, counted = columns, numbered
    said = [f"each row was printed by {ranks} ranks: it counts once"] if ranks > 1 else []
    said += [f"the longest of {trainings} trainings that were printed"] if trainings > 1 else []
    return history_of(longest, "printed", [*notes, *said, *([_NUMBERED] if counted else [])]) if longest.rows else None


def _trainings(rows: Iterable[dict[str, float]]) -> Iterator[Iterator[dict[str, float]]]:
    """The rows of each training: it ends with its summary, and what is measured after that. Each must be used up before
    the next one is asked for."""
    rest = iter(rows)
    ahead = list(islice(rest, 1))
    while ahead:
        yield _training(ahead, rest)


def _training(ahead: list[dict[str, float]], rest: Iterator[dict[str, float]]) -> Iterator[dict[str, float]]:
    """The rows of one training, of which the first is in `ahead`; there is then the first one of the next training."""
    over = False
    while ahead:
        if over and not _measures(ahead[0]):
            return
        row = ahead.pop()
        over = over or is_summary(row)
        yield row
        ahead.extend(islice(rest, 1))


def _measures(row: dict[str, float]) -> bool:
    return any(key.startswith("eval_") for key in row)


def _rows(path: Path, lines: Iterable[str]) -> Iterator[dict[str, float]]:
    """The dictionaries that hold a metric we know beside an epoch or a step, which the trainer adds to each, and verl's
    lines. Raises UsageError for one with a loss or a reward that is no number, where those before it have one."""
    before: dict[str, float] = {}
    for line in _mended(lines):
        if found := _OF_VERL.search(line):
            row = dict(_numbers(_VALUE.findall(found[2])))
            if is_verl(row):
                yield translate({"step": int(found[1]), **row})
        dicts = [(text, dict(_numbers(_PAIR.findall(text)))) for text in _ROW.findall(line)] if "{'" in line else []
        dicts += [(text, _of_json(text)) for text in _JSON_ROW.findall(line)] if '{"' in line else []
        for text, row in dicts:
            if lost := _lost(before, row, text):
                raise unreadable(path, repr(text[:100]), f"{lost} is no number")
            if _tells(row):
                before = row if any(name_of_column(key) in OF_TRAINING for key in row) else before
                yield row


def _lost(before: Mapping[str, float], row: Mapping[str, float], text: str) -> str:
    """The loss or the reward for which a row has no number, though it has all names of the row before."""
    lost = [key for key in before if key not in row and name_of_column(key) in OF_TRAINING and key not in ROUNDED]
    said = dict(_SAID.findall(text)) if lost else {}
    lost = [key for key in lost if not row or said.get(key) not in _ABSENT]
    return lost[0] if lost and before.keys() <= said.keys() else ""


def _tells(row: dict[str, float]) -> bool:
    return bool(EPOCH in row or step_column(row)) and any(is_canonical(name_of_column(key)) for key in row)


def _of_json(text: str) -> dict[str, float]:
    with suppress(ValueError):
        found = {key: number_or_none(str(value)) for key, value in json_value(text).items()}
        return {key: value for key, value in found.items() if value is not None}
    return {}


def _mended(lines: Iterable[str]) -> Iterator[str]:
    """The lines, with a dictionary that a terminal broke at its width, or that was printed over several, in one."""
    parts: list[str] = []
    for line in lines:
        begins = "{'" in line
        if parts and (begins or len(parts) == _BROKEN or _OF_VERL.search(line)):
            yield "".join(parts)  # without an end: no dictionary, or one that was cut
            parts.clear()
        if not parts and not (begins and "}" not in line[line.rfind("{'") :]):
            yield line
            continue
        parts.append(line.strip("\r\n"))
        if "}" in line and not begins:
            yield "".join(parts)
            parts.clear()
    if parts:
        yield "".join(parts)


def _numbered(rows: Iterable[dict[str, float]]) -> Iterator[tuple[int, dict[str, float]]]:
    """Each row with its number; an evaluation has that of the row before it, and a resumed run goes on where its epoch
    was."""
    epochs: list[float] = []
    for row in rows:
        if is_summary(row) or _measures(row):
            yield max(len(epochs), 1), row
            continue
        epoch = row.get(EPOCH, float(len(epochs)))
        if epochs and epoch < epochs[-1]:
            del epochs[bisect_left(epochs, epoch) :]
        epochs.append(epoch)
        yield len(epochs), row


def _numbers(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, float]]:
    for key, value in pairs:
        with suppress(ValueError):
            if not is_rounded_zero(key, value):
                yield key, number(value)
