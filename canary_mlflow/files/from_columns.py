"""Turns what was read into a history: a series per metric, and a sentence for each thing that was fixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from canary_mlflow.errors import UsageError
from canary_mlflow.files.columns import Column, Columns
from canary_mlflow.files.history import History
from canary_mlflow.files.names import STEP_NAMES, is_canonical, is_epoch
from canary_mlflow.files.numbers import ELAPSED, other_unit, speed_of
from canary_mlflow.files.source import MAX_RESTARTS, MOST_TWICE, SHOWN
from canary_mlflow.gates.model.records import Series
from canary_mlflow.tracking.describing.schema import FOREIGN

_FEW = 8  # times that only rise by chance
_PER_EPOCH = 3  # rows with other values: those of steps rather than of ranks


class SeveralPerEpoch(UsageError):
    """The only step is an epoch, and each has several rows: they are to be read again, counted."""


def history_of(read: Columns, kind: str, notes: Iterable[str], *, planned: Any = None) -> History:
    """The collected columns as a history."""
    planned = planned or read.planned
    read.settle()
    return History(
        path=read.path,
        kind=kind,
        series=in_our_units(series_of(read)),
        notes=(*notes, *notes_of(read)),
        max_steps=planned if isinstance(planned, int) and planned > 0 else None,
        goes_on=read.goes_on(),
        last_row=read.last,
    )


def series_of(read: Columns) -> dict[str, Series]:
    """The finished series by name. Raises UsageError if there is nothing to judge."""
    if not read.rows:
        raise UsageError(f"{read.path}: holds no {read.row_word}; expected the history of a run; nothing to judge")
    if read.step_key is None:
        found = ", ".join(read.seen) or "nothing"
        raise UsageError(
            f"{read.path}: no step in any {read.row_word}; found {found}; expected a column named {STEP_NAMES}"
        )
    if read.before > MAX_RESTARTS:
        raise _out_of_order(read, read.before, "")
    worst = max(
        read.columns.values(), key=lambda column: (_disordered(column), is_canonical(column.name)), default=None
    )
    if worst is not None and _disordered(worst):
        raise _out_of_order(read, worst.restarts, f" ({worst.name})")
    found_series: dict[str, Series] = {}
    for column in read.columns.values():
        if not len(column.values):
            continue
        if is_canonical(column.name) and column.changed and _of_steps(read, column):
            raise SeveralPerEpoch(
                f"{read.path}: several {read.row_word}s per epoch; expected a step; add a column step"
            )
        if is_canonical(column.name) and column.changed > max(1, MOST_TWICE * len(column.steps)):
            raise UsageError(
                f"{read.path}: {column.changed:,} of {len(column.steps):,} steps have several values of {column.name}; "
                f"expected one {read.row_word} per optimizer step; keep one rank or split, or add up micro-steps"
            )
        series = _series(column, read.rows)
        # Two columns of one name, `loss` and `train/loss`: the fuller one, else the one that is in trouble.
        before = found_series.get(column.name)
        if before is None or _weight(before) < _weight(series):
            found_series[column.name] = series
    if not found_series:
        raise UsageError(f"{read.path}: no number besides the step; expected columns such as loss; nothing to judge")
    return found_series


def in_our_units(read: Mapping[str, Series]) -> dict[str, Series]:
    """The series, with those of ours that only others of other units tell: a rate, a time in milliseconds."""
    found = dict(read)
    for name, series in read.items():
        column = name.removeprefix(FOREIGN)
        unit = other_unit(column) if name != column else None
        if unit is None or unit.metric in found or (speed_of(column) and len(series.values) == 1):  # one is a summary
            continue
        steps, values = series.steps, series.values
        gone = np.diff(values)
        if column.strip().lower() in ELAPSED and len(gone) > _FEW and np.all(gone > 0):  # since the beginning
            steps, values = steps[1:], gone / np.diff(steps)
        there = values != 0
        found[unit.metric] = Series(name=unit.metric, steps=steps[there], values=unit.ours(values[there]))
    return found


def _out_of_order(read: Columns, times: int, where: str) -> UsageError:
    return UsageError(
        f"{read.path}: steps go back {times} times{where}; expected the order of training; sort the rows, or split "
        "them into one file per run"
    )


def _of_steps(read: Columns, column: Column) -> bool:
    """Whether the rows of an epoch are those of its steps."""
    by_epoch = read.step_key is not None and is_epoch(read.step_key) and not read.numbered
    return by_epoch and read.rows >= _PER_EPOCH * len(column.steps)


def _disordered(column: Column) -> bool:
    return len(column.values) > 0 and column.restarts > MAX_RESTARTS


def is_padded(column: Column, rows: int) -> bool:
    """Whether an evaluation's NaNs are the empty cells of a table: it is in every row of the file, NaN in most of them
    and a number in later ones. pandas writes NaN for what was not measured."""
    if not column.name.startswith("eval_") or len(column.values) < rows:
        return False
    values = np.array(column.values)
    missing, found = np.flatnonzero(np.isnan(values)), np.flatnonzero(np.isfinite(values))
    # What is NaN from some step to the end has diverged.
    return 2 * len(missing) > rows and len(found) > 0 and bool(missing[0] < found[-1])


def notes_of(read: Columns) -> tuple[str, ...]:
    """One sentence for each thing that was fixed."""
    notes = []
    if read.numbered:
        notes.append(f"several {read.row_word}s per epoch and no step: they are numbered")
    if read.trainings > 1:
        notes.append(
            f"the last of {read.trainings} trainings, from {read.row_word} {read.begun} on: steps begin again there; "
            "to judge the others, give each a file of its own"
        )
    if read.resumed:
        notes.append(
            f"steps begin again at {read.row_word} {read.resumed}, where the training goes on: read as a run that was "
            "resumed, with its steps counted on"
        )
    if read.left:
        notes.append(f"{_count(read.left, read.row_word)} at the end left out: steps begin again there")
    if read.stepless:
        notes.append(f"{_count(read.stepless, read.row_word)} without a step left out")
    back = max(read.columns.values(), key=lambda column: column.restarts, default=None)
    if back is not None and back.restarts:
        row, before, after = back.returned
        times = f" ({back.restarts} times in all)" if back.restarts > 1 else ""
        notes.append(
            f"steps go back from {before} to {after} at {read.row_word} {row}{times}: read as a run that was "
            "resumed; what was written later counts"
            + ("; are these several runs? then give each a file of its own" if back.anew else "")
        )
    known = [column for column in read.columns.values() if is_canonical(column.name)]
    if doubled := max((column.doubled for column in known), default=0):
        notes.append(f"{_count(doubled, 'step')} written twice: the later value counts")
    if read.dropped:
        notes.append(f"partly text, left out: {', '.join(read.dropped[:SHOWN])}")
    # One value beside a column of many is a summary, such as the `train_loss` that Transformers ends with.
    named = Counter(column.name for column in read.columns.values() if len(column.values) > 1)
    if twice := [name for name, count in named.items() if count > 1]:
        notes.append(f"several columns for one metric, one of them read: {', '.join(twice[:SHOWN])}")
    if padded := [column.name for column in read.columns.values() if is_padded(column, read.rows)]:
        notes.append(f"NaN in most rows and numbers in others, read as empty cells: {', '.join(padded[:SHOWN])}")
    if holes := _holes(read):
        notes.append(f"loss is missing in {_count(holes, read.row_word)} that have the rest of the training's columns")
    texts = [column.name for column in read.columns.values() if column.texts]
    if texts:
        notes.append(f"numbers written as text, read as numbers: {', '.join(texts[:SHOWN])}")
    return tuple(notes)


def _holes(read: Columns) -> int:
    """How many rows lack only the loss, if nearly all have one: pandas writes NaN as an empty cell."""
    training = [column for column in read.columns.values() if is_canonical(column.name) and column.name[:5] != "eval_"]
    losses = [np.array(column.steps) for column in training if column.name == "loss"]
    others = [
        np.array(column.steps) for column in training if column.name != "loss" and 2 * len(column.steps) > read.rows
    ]
    if not losses or not others:
        return 0
    there = reduce(np.union1d, losses)
    missing = len(np.setdiff1d(reduce(np.intersect1d, others), there))
    return missing if 10 * missing < len(there) else 0


def _series(column: Column, rows: int) -> Series:
    steps, values = np.array(column.steps, dtype=np.int64), np.array(column.values, dtype=np.float64)
    kept = ~np.isnan(values) if is_padded(column, rows) else slice(None)
    return Series(name=column.name, steps=steps[kept], values=values[kept])


def _weight(series: Series) -> tuple[int, int]:
    return len(series.steps), int(np.count_nonzero(~series.finite))


def _count(number: int, word: str) -> str:
    many = "entries" if word == "entry" else f"{word}s"
    return f"{number:,} {word if number == 1 else many}"
