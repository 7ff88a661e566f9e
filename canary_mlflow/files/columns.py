"""Turns rows into columns: numbers from whatever a file writes for them, one value per step and column."""

from __future__ import annotations

import math
import reprlib
import statistics
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from math import isclose, isnan
from pathlib import Path
from typing import Any

import numpy as np

from canary_mlflow.errors import UsageError
from canary_mlflow.files.names import (
    OF_SWIFT,
    PLANNED,
    epoch_column,
    is_canonical,
    is_epoch,
    name_of_column,
    step_column,
)
from canary_mlflow.files.numbers import measured, number_or_none, other_unit
from canary_mlflow.files.source import MAX_COLUMNS, SHOWN, too_many_columns
from canary_mlflow.gates.watch.stages import is_stage
from canary_mlflow.tracking.describing.schema import FOREIGN

_SAME = 0.01  # share by which two ranks may differ that each write the mean of all
_BEHIND = 8  # rows that one of them may be behind the other
_ANEW = 0.1  # of the way: a checkpoint from which a training goes on is further than this


OF_TRAINING = frozenset(
    ("loss", "policy_loss", "step_time", "grad_norm", "learning_rate", "tokens", "reward_mean", "score_mean")
)


class Column:
    """The values of one metric so far, their steps strictly rising."""

    __slots__ = (
        "_twice",
        "anew",
        "changed",
        "doubled",
        "last",
        "name",
        "restarts",
        "returned",
        "steps",
        "texts",
        "values",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = array("q")
        self.values = array("d")
        self.last = -1
        self.doubled = 0  # steps with more than one row
        self.changed = 0  # of these, with another value
        self._twice = -1
        self.texts = 0
        self.restarts = 0
        self.anew = 0  # of these, back to the first step
        self.returned = (0, 0, 0)  # row, from step, to step: the first time that steps went back

    @property
    def of_training(self) -> bool:
        """Whether a training writes it itself: an evaluator beside it may be late, and a foreign column be anything."""
        return self.name in OF_TRAINING

    def begins_anew(self, step: int) -> bool:
        """Whether a row of this step is the first of another training: it goes back to the beginning, or nearly, from
        far beyond. A training that goes on from a checkpoint goes back less."""
        if not len(self.steps) or step > self.last or step in self.steps[-2:] or self._behind(step):
            return False
        first = self.steps[0]
        return step - first <= _ANEW * (self.last - first)

    def _behind(self, step: int) -> bool:
        """Whether it is of a step not long ago, where most have two rows."""
        return 2 * self.doubled >= len(self.steps) and step in self.steps[-_BEHIND:]

    def repeats(self, step: int, value: float) -> bool:
        """Whether it is the row of a rank that is behind another."""
        if step >= self.last or not self._behind(step):
            return False
        self.doubled += 1
        self.changed += not self._alike(value, self.values[bisect_left(self.steps, step)])
        return True

    def rewind(self, step: int, value: float, row: int) -> bool:
        """Forget what stands at `step` and after it: the row that comes now, with `value`, was written later. True if
        steps went back there, and not just to the same one or to the one before."""
        at = bisect_left(self.steps, step)
        late = step in self.steps[-2:]  # also the row of a rank that is one row behind the other
        if late:
            before = self.values[at]
            if step != self._twice:
                self.doubled += 1
                self.changed += not self._alike(value, before)
            self._twice = step
        else:
            if not self.restarts:
                self.returned = (row, self.last, step)
            self.restarts += 1
            self.anew += at == 0
        self.forget(step)
        return not late

    @staticmethod
    def _alike(value: float, before: float) -> bool:
        return isclose(value, before, rel_tol=_SAME) or (isnan(value) and isnan(before))

    def forget(self, step: int) -> None:
        """Drop what stands at `step` and after it."""
        keep = bisect_left(self.steps, step)
        del self.steps[keep:]
        del self.values[keep:]
        self.last = self.steps[-1] if self.steps else -1


FEW = 5  # rows; a training of fewer has hardly begun, or is a summary behind the one before, or a report
_LAST_STEP = 2**53  # beyond it a float, which CSV gives, is no exact step
_NUMBERS = {float, int}


class Columns:
    """Collects the rows of one file; where it holds several trainings, one after the other, those of the last."""

    def __init__(self, path: Path, *, row_word: str = "row", numbered: bool = False) -> None:
        """`numbered`: where only an epoch tells the step, the rows are counted instead."""
        self.path = path
        self.row_word = row_word
        self.numbered = numbered
        self.columns: dict[str, Column] = {}
        self.step_key: str | None = None
        self.planned: int | None = None  # steps, where the rows say so
        self.rows = 0
        self.trainings = 1
        self.begun = 0  # row of the last one's beginning
        self.left = 0  # rows of a training that has hardly begun, behind the one that is judged
        self._former: tuple[dict[str, Column], int, int] | None = None  # the training before, its rows and beginning
        self.before = 0  # how often steps went back until then
        self.resumed = 0  # row at which steps begin again, of a training that goes on there
        self._offset = 0  # of the steps since then
        self.stepless = 0
        self.last = -1  # step of the last row, whatever it holds
        self._ignored: set[str] = set()  # columns of text: no metrics
        self._codes: dict[str, dict[str, float]] = {}  # of the names that a column of stages has
        self.dropped: list[str] = []  # those of them that held numbers too
        self.seen: dict[str, None] = {}

    def add_all(self, rows: Iterable[Mapping[str, Any]], first: int) -> None:
        """Add rows in the file's order; `first` is the number of the first one, for messages."""
        for number, row in enumerate(rows, first):
            self.add(row, number)

    def add_block(self, rows: list[Mapping[str, Any]], first: int) -> None:
        """The same for many rows at once: column by column where all are alike, else row by row."""
        if not self._add_alike(rows):
            self.add_all(rows, first)

    def _add_alike(self, rows: list[Mapping[str, Any]]) -> bool:
        """Take rows that need no fixing: equal keys, numbers only, rising steps. False: nothing was taken."""
        keys, step_key = rows[0].keys(), self.step_key
        if step_key not in keys or self._counts(step_key) or self._offset or any(row.keys() != keys for row in rows):
            return False
        blocks: dict[str, array[float]] = {}
        try:
            steps = array("q", [row[step_key] for row in rows])
            for key in keys - {step_key} - self._ignored:
                values = [row[key] for row in rows]
                if not set(map(type, values)) <= _NUMBERS:
                    return False
                blocks[key] = array("d", values)
        except (TypeError, OverflowError):
            return False
        last = max((column.last for column in self.columns.values()), default=-1)
        if steps[0] <= last or steps[-1] > _LAST_STEP or not bool(np.all(np.diff(np.frombuffer(steps, np.int64)) > 0)):
            return False
        self._refuse_many(sum(key not in self.columns for key in blocks))
        self.rows += len(rows)
        self.last = steps[-1]
        for key, block in blocks.items():
            column = self.columns.get(key) or self.columns.setdefault(key, Column(name_of_column(key)))
            column.steps.extend(steps)
            column.values.extend(block)
            column.last = steps[-1]
        return True

    def add(self, row: Mapping[str, Any], number: int) -> None:
        """Add one row. Raises UsageError for a step or a known metric that is not a number."""
        self.rows += 1
        step = self._step(row, number)
        if step is None:
            return
        step += self._offset
        if step <= self.last and self._begins_anew(row, step):
            if goes_on := self._goes_on(row):
                self.resumed = self.resumed or number
                self._offset += goes_on - step
                step = goes_on
            else:
                self.before += max((column.restarts for column in self.columns.values()), default=0) + 1
                self._former = self.columns, self.rows - 1, self.begun
                self.columns, self.rows, self.begun = {}, 1, number
                self.trainings += 1
        self.last = step
        columns, step_key = self.columns, self.step_key
        for key, value in row.items():
            if value is None or key == step_key or key in self._ignored:
                continue
            column = columns.get(key)
            if column is None:
                self._refuse_many(1)
                column = columns[key] = Column(name_of_column(key))
            if type(value) is not float:
                value = self._number(column, key, value, number, row)
                if value is None:
                    continue
            if column.repeats(step, value) or (step == column.last and column.name == "learning_rate"):
                continue  # also what an evaluation's row has of one, after its step's
            if step <= column.last and column.rewind(step, value, number) and column.of_training:
                self._forget(step)
            column.last = step
            column.steps.append(step)
            column.values.append(value)

    def settle(self) -> None:
        """All rows are there: go back to the training before where the last one has hardly begun."""
        if self._former is not None and self.rows < FEW <= self._former[1]:
            self.left, self.last = self.rows, -1
            self.columns, self.rows, self.begun = self._former
            self.trainings -= 1

    def goes_on(self) -> bool:
        """Whether the last training begins where the one before ended: a resume that counts its steps anew."""
        if self._former is None or self.left:
            return False
        for name in ("reward_mean", "score_mean", "loss"):
            trainings = (self._former[0], self.columns)
            found = [column.values for columns in trainings for column in columns.values() if column.name == name]
            if len(found) == len(trainings):
                before, last = found
                start, end, now = (statistics.median(some) for some in (before[:FEW], before[-FEW:], last[:FEW]))
                return 2 * abs(now - end) < abs(start - end)
        return False

    def _refuse_many(self, new: int) -> None:
        """Raise UsageError if that many new columns are too many."""
        if len(self.columns) + len(self._ignored) + new > MAX_COLUMNS:
            raise too_many_columns(self.path)

    def _begins_anew(self, row: Mapping[str, Any], step: int) -> bool:
        """Whether this row is the first of another training."""
        columns = self.columns
        return any(
            column.last >= step and column.of_training and row.get(key) is not None and column.begins_anew(step)
            for key, column in columns.items()
        )

    def _goes_on(self, row: Mapping[str, Any]) -> int:
        """The step of this row in a training that goes on, as its epoch does, though its steps begin again: Lightning's
        may after a resume. 0 for another training."""
        key = epoch_column(row) or ""
        epochs, now = self.columns.get(key), number_or_none(str(row.get(key)))
        steps = next((column.steps for column in self.columns.values() if column.of_training), None)
        if epochs is None or now is None or steps is None or len(steps) < FEW:
            return 0
        return 2 * steps[-1] - steps[-2] if epochs.values[0] < epochs.values[-1] <= now else 0

    def _forget(self, step: int) -> None:
        """A training goes on from `step`: the evaluations of its former attempt go too, which the new one may never
        reach. Columns of the training go back by themselves, and one that does not has nothing newer to say."""
        for column in self.columns.values():
            if column.name.startswith("eval_") and column.last > step:
                column.forget(step)

    def _step(self, row: Mapping[str, Any], number: int) -> int | None:
        key = self.step_key
        if key is None or key not in row:
            key = step_column(row) or self._epoch(row)
            if key is None:
                self.stepless += 1
                self.seen.update(dict.fromkeys(list(row)[:SHOWN]))
                return None
            self.step_key = key
            planned = row.get(PLANNED.get(key, ""))
            self.planned = planned if isinstance(planned, int) else self.planned
        if self._counts(key):
            return self.rows
        step = row[key]
        if type(step) is int:
            return self._checked(key, step, number)
        if step is None:
            self.stepless += 1
            return None
        if key == OF_SWIFT and isinstance(step, str):
            step, _, planned = step.partition("/")
            self.planned = int(planned) if planned.isdecimal() else self.planned
        found = number_or_none(step) if isinstance(step, str) else step
        if isinstance(found, bool) or not isinstance(found, int | float) or not float(found).is_integer():
            raise self._bad_step(key, step, number)
        return self._checked(key, int(found), number)

    def _counts(self, key: str | None) -> bool:
        return self.numbered and key is not None and is_epoch(key)

    def _epoch(self, row: Mapping[str, Any]) -> str | None:
        """The epoch's column, if the file has no better step and this one is whole."""
        key = epoch_column(row) if self.step_key is None else None
        value = row[key] if key else None
        found = number_or_none(value) if isinstance(value, str) else value
        return key if isinstance(found, int | float) and float(found).is_integer() else None

    def _checked(self, key: str, step: int, number: int) -> int:
        if 0 <= step <= _LAST_STEP:
            return step
        raise self._bad_step(key, step, number)

    def _bad_step(self, key: str, step: Any, number: int) -> UsageError:
        return UsageError(
            f"{self.path}: {self.row_word} {number}: {key} is {_shown(step)}; expected a whole number from 0; "
            "fix that row"
        )

    def _number(self, column: Column, key: str, value: Any, number: int, row: Mapping[str, Any]) -> float | None:
        """The value as a float; None if the column is not a metric at all, or says nothing in this row."""
        found = None
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                found = float(value)
            except OverflowError:
                found = math.inf if value > 0 else -math.inf
        elif isinstance(value, str):
            if not value.strip():
                return None
            found = number_or_none(value)
            found = _with_unit(column, key, value) if found is None else found
            column.texts += found is not None and math.isfinite(found)
        if found is not None:
            return found
        if isinstance(value, str) and is_stage(key):
            if not any(name_of_column(one) in OF_TRAINING for one in row):
                return None  # an evaluation's row: `phase: eval` is no stage
            codes = self._codes.setdefault(key, {})
            return codes.setdefault(value, float(len(codes)))
        if is_canonical(column.name):
            raise unreadable(self.path, f"{self.row_word} {number}", f"{key} is {_shown(value)}")
        self._ignored.add(key)
        if len(self.columns.pop(key).values):
            self.dropped.append(key)
        return None


def _with_unit(column: Column, key: str, text: str) -> float | None:
    """The number of a cell with its unit, `78.0GiB`, which the column's name then ends in: one unit for all rows."""
    said, unit = measured(text.strip())
    name = name_of_column(f"{key}_{unit}")
    if not unit or not (is_canonical(name) or other_unit(name.removeprefix(FOREIGN))):
        return None
    if not len(column.values):
        column.name = name
    return number_or_none(said) if column.name == name else None


def unreadable(path: Path, where: str, found: str) -> UsageError:
    """The error for a row with something else where a number should be."""
    return UsageError(
        f"{path}: rows could not be read, the first of them {where}: {found}; expected a number, null or NaN; fix it"
    )


def _shown(value: Any) -> str:
    text = reprlib.repr(value) if isinstance(value, list | dict) else repr(value)  # nested deeply, perhaps
    return text if len(text) <= 40 else f"{text[:37]}..."
