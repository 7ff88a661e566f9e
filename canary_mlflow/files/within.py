"""The rows within a JSON object that is no trainer's state: a list of them, or a list of values per metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from canary_mlflow.files.names import epoch_column, is_canonical, name_of_column, step_column

Rows = list[Mapping[str, Any]]


def rows_within(body: Mapping[str, Any]) -> tuple[Rows, str] | None:
    """The rows, and a note that says where they were; None if there are none, or the object is a row itself."""
    if step_column(body) and not isinstance(body[step_column(body) or ""], list):
        return None
    lists = {key: value for key, value in body.items() if isinstance(value, list) and value}
    tables = {key: value for key, value in lists.items() if _is_table(value)}
    if tables:
        key = _widest(tables) or _widest({key: rows for key, rows in tables.items() if not _of_evaluation(key)})
        return (tables[key], f"the rows are those of {key}") if key else None
    return _by_metric(lists)


def _widest(tables: Mapping[str, list[Any]]) -> str | None:
    """The one with the most names; None if there are several."""
    widths = {key: len({name for row in rows for name in row}) for key, rows in tables.items()}
    widest = [key for key, width in widths.items() if width == max(widths.values())]
    return widest[0] if len(widest) == 1 else None


def _of_evaluation(key: str) -> bool:
    return key.lower().startswith(("eval", "val", "test"))


def _is_table(rows: list[Any]) -> bool:
    """Whether these are rows, each with a step."""
    return all(isinstance(row, Mapping) for row in rows) and bool(step_column(rows[0]) or epoch_column(rows[0]))


def _by_metric(lists: Mapping[str, list[Any]]) -> tuple[Rows, str] | None:
    """The rows of columns of one length, such as a Keras history; numbered from 1 if none of them is the step."""
    known = [len(values) for key, values in lists.items() if is_canonical(name_of_column(key))]
    if not known:
        return None
    columns = {key: values for key, values in lists.items() if len(values) == max(known)}
    if step_column(columns) is None and epoch_column(columns) is None:
        columns = {**columns, "step": list(range(1, max(known) + 1))}
        note = "a list of values per metric, without a step: the values are numbered"
    else:
        note = "a list of values per metric"
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], note
