"""Rows whose metrics are objects within the row, made flat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from canary_mlflow.files.names import is_canonical, name_of_column

_WRAPPERS = ("metrics", "data", "log", "logs", "stats", "values")  # say nothing of what is in them


def flat(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with `{"eval": {"loss": 2.0}}` as `eval/loss`, and `{"metrics": {"loss": 2.0}}` as `loss`."""
    if not any(type(value) is dict for value in row.values()):
        return row
    found: dict[str, Any] = {}
    for key, value in row.items():
        for inner, one in value.items() if type(value) is dict else ():
            path = f"{key}/{inner}"
            bare = key in _WRAPPERS and not is_canonical(name_of_column(path))
            found.setdefault(inner if bare else path, one)
        if type(value) is not dict:
            found[key] = value
    return found
