"""The JSON beside a history: what a run has once, such as its seed, its evaluation, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import read_json
from canary_mlflow.files.names import is_canonical, name_of_column

FAILURES = ("instability", "oom", "timeout", "crash", "interrupted", "error")
SECTIONS = ("workload", "hardware", "environment", "configuration")


@dataclass(frozen=True, kw_only=True)
class Sidecar:
    """`metrics` by canonical name; `failure` is one of FAILURES or ''; `unread`: keys that say nothing here."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    seed: int | None = None
    completed: bool = True
    failure: str = ""
    failure_reason: str = ""
    learned: bool | None = None
    workload: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


def sidecar_of(path: Path) -> Path | None:
    """Where the JSON beside a history would be: run.json for run.jsonl, run.csv or run.csv.gz; a JSON has none."""
    bare = path.with_suffix("") if path.suffix == ".gz" else path
    return None if bare.suffix == ".json" else bare.with_suffix(".json")


def read_sidecar(path: Path) -> Sidecar:
    """Read that JSON. Raises UsageError for what is not a JSON object, and for impossible values of known keys."""
    try:
        body = read_json(path)
    except (OSError, ValueError) as error:  # ValueError: neither JSON nor UTF-8
        raise UsageError(f"{path}: no readable JSON ({' '.join(str(error).split())}); fix or remove it") from None
    if not isinstance(body, Mapping):
        raise UsageError(f'{path}: found {type(body).__name__}; expected an object such as {{"seed": 1}}; fix it')
    found: dict[str, Any] = {"metrics": {}}
    unread = []
    for key, value in body.items():
        name = name_of_column(key)
        if value is None:
            continue
        if key in _FIELDS:
            found[key] = _FIELDS[key](f"{path}: {key}", value)
        elif is_canonical(name):
            found["metrics"][name] = _number(f"{path}: {key}", value)
        else:
            unread.append(key)
    if found.get("completed") is False and not found.get("failure"):
        found["failure"] = "crash"  # it did not come to its end, and nobody says that it was stopped from outside
    if found.get("failure"):
        found["completed"] = False
    return Sidecar(**found, unread=tuple(unread))


def _number(where: str, value: Any) -> float:
    try:
        if not isinstance(value, bool):
            return float(value)  # NaN and Infinity may stand bare
    except (TypeError, ValueError, OverflowError):
        pass  # refused below
    raise UsageError(f"{where}: found {repr(value)[:60]}; expected a number; fix it")


def _whole(where: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise UsageError(f"{where}: found {value!r}; expected a whole number; fix it")


def _flag(where: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise UsageError(f"{where}: found {value!r}; expected true or false; fix it")


def _failure(where: str, value: Any) -> str:
    if value in ("", *FAILURES):
        return str(value)
    raise UsageError(f"{where}: found {value!r}; valid: {', '.join(FAILURES)}, or nothing for a run that ended well")


def _facts(where: str, value: Any) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items()}
    raise UsageError(f'{where}: found {value!r}; expected an object of facts such as {{"backend": "cpu"}}; fix it')


_FIELDS = {
    "seed": _whole,
    "completed": _flag,
    "failure": _failure,
    "failure_reason": lambda where, value: str(value),
    "learned": _flag,
    **dict.fromkeys(SECTIONS, _facts),
}
