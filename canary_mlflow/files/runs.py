"""Turns files into runs for the judge: one history per file, with the JSON beside it if there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import read_json
from canary_mlflow.files.history import History
from canary_mlflow.files.names import MARKS, is_canonical, name_of_column
from canary_mlflow.files.numbers import other_unit
from canary_mlflow.files.reading import read_history
from canary_mlflow.files.source import SHOWN
from canary_mlflow.files.watched import critical_held
from canary_mlflow.gates.hard.hard_gates import OVERFLOWS
from canary_mlflow.gates.model.metrics import metrics_with
from canary_mlflow.gates.model.records import Run, Series, Version
from canary_mlflow.gates.model.wording import listed
from canary_mlflow.tracking.describing.schema import FOREIGN

FAILURES = ("instability", "oom", "timeout", "crash", "interrupted", "error")
SECTIONS = ("workload", "hardware", "environment", "configuration")


def sidecar_of(path: Path) -> Path | None:
    """Where the JSON beside a history would be: run.json for run.jsonl, run.csv or run.csv.gz; a JSON has none."""
    bare = path.with_suffix("") if path.suffix == ".gz" else path
    return None if bare.suffix == ".json" else bare.with_suffix(".json")


def read_sidecar(path: Path) -> tuple[dict[str, Any], dict[str, float], list[str]]:
    """What that JSON says: fields of the run, metrics by canonical name, and keys that say nothing here. Raises
    UsageError for what is not a JSON object, and for impossible values of known keys."""
    try:
        body = read_json(path)
    except (OSError, ValueError) as error:  # ValueError: neither JSON nor UTF-8
        raise UsageError(f"{path}: no readable JSON ({' '.join(str(error).split())}); fix or remove it") from None
    if not isinstance(body, Mapping):
        raise UsageError(f'{path}: found {type(body).__name__}; expected an object such as {{"seed": 1}}; fix it')
    found: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    unread = []
    for key, value in body.items():
        name = name_of_column(key)
        if value is None:
            continue
        if key in _FIELDS:
            found[key] = _FIELDS[key](f"{path}: {key}", value)
        elif is_canonical(name):
            metrics[name] = _number(f"{path}: {key}", value)
        else:
            unread.append(key)
    if found.get("completed") is False and not found.get("failure"):
        found["failure"] = "crash"  # it did not come to its end, and nobody says that it was stopped from outside
    if found.get("failure"):
        found["completed"] = False
    return found, metrics, unread


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


TELLING = ("loss", "accuracy", "memory", "_mem_", "grad")
TIMED = ("time", "seconds", "duration")
OTHER_TIMES = (
    "runtime",
    "timestamp",
    "wall time",
    "timing",
    "eval_",
    "eval/",
    "profiling/",
    "elapsed",
    "wall_time",
    "relative time",
)
"""Names of times that tell nothing of a step, such as Transformers' train_runtime."""


def read_side(paths: Sequence[Path]) -> tuple[Version, tuple[str, ...]]:
    """One side of a comparison, and what the readers noted; a run is named by its path. Raises UsageError."""
    called: dict[Path, Path] = {}
    read = [read_run(called.setdefault(path.resolve(), path)) for path in paths]  # one file, however it is written
    noted: dict[str, list[str]] = {}
    for run, found in read:
        for note in found:
            noted.setdefault(note, []).append(run.run_id)
    notes = [f"{_files(paths)}: {note}" for note, paths in noted.items()]
    return Version(model="", version=None, runs=tuple(run for run, _ in read)), tuple(notes)


def _files(paths: Sequence[str]) -> str:
    """The first, and how many more: what is said of each of ten files is said once."""
    others = len(dict.fromkeys(paths)) - 1
    return paths[0] if not others else f"{paths[0]} and {others} more {'file' if others == 1 else 'files'}"


def read_run(path: Path) -> tuple[Run, tuple[str, ...]]:
    """The run of one file, and the readers' notes. Unless a JSON says otherwise, the run reached its end."""
    return run_of(read_history(path))


def run_of(history: History) -> tuple[Run, tuple[str, ...]]:
    """The same for a history that was already read."""
    path = history.path
    beside = sidecar_of(path)
    said, metrics, unknown = read_sidecar(beside) if beside is not None and beside.exists() else ({}, {}, [])
    steps, once = _derived(history), _scalars(metrics, history.last_step)
    series = {**once, **steps}
    notes = (*history.notes, *history.gaps)
    if twice := sorted(steps.keys() & once.keys()):
        notes = (*notes, f"{beside} gives {', '.join(twice)}, which the steps have too: the steps count")
    if unread := unread_of(history):
        notes = (
            *notes,
            f"nothing is read from {listed(unread, SHOWN)}; a metric is read by our name: step_time (seconds), loss, …",
        )
    if unknown:
        notes = (*notes, f"{beside} has keys that nothing reads: {', '.join(unknown)}")
    run = Run(
        run_id=str(path),
        series=series,
        critical_held=critical_held(history, said.get("workload", {}).get("algo", "")),
        **{"seed": None, **said},
        last_step=history.last_step,
    )
    return cut_short(run, history), notes


def cut_short(run: Run, history: History) -> Run:
    """The run, marked as broken off if the file says how many steps it should have and some are missing."""
    planned, end = history.max_steps, history.series.get(FOREIGN + "train_runtime")
    if run.failure or planned is None or history.last_step + _gap(_longest(history)) > planned:
        return run
    if end is not None and int(end.steps[-1]) >= history.last_step:
        return run  # what Transformers writes at the end of a training, early stopping included
    reason = f"the history ends at step {history.last_step} of {planned}"
    broken_off = replace(run, completed=False, failure="error", failure_reason=reason)
    return broken_down(broken_off)


def broken_down(run: Run) -> Run:
    """The run, marked as ended by instability if the last values of a metric that must be finite are not."""
    for name in metrics_with("never_nan"):
        series = run.series.get(name)
        if series is None or series.finite[-1] or int(series.steps[-1]) + _gap(series) < run.last_step:
            continue  # none, fine, or of long before the end
        known = series.finite.any()
        if not known and name == "grad_norm" and len(series.values) <= OVERFLOWS:
            continue  # fp16 was still looking for its loss scale
        bad = len(series.values) - int(np.argmax(series.finite[::-1])) if known else 0
        reason = f"{name} is {series.values[-1]:g} from step {series.steps[bad]} to the end"
        return replace(run, completed=False, failure="instability", failure_reason=reason)
    return run


def _gap(series: Series) -> int:
    """Steps between two logged values: a run may end before the next one is due."""
    return int(np.median(np.diff(series.steps))) if len(series.steps) > 1 else 1


def _longest(history: History) -> Series:
    return max(history.series.values(), key=lambda series: len(series.steps))


def unread_of(history: History) -> list[str]:
    """The columns that no metric is made of, though their names plainly say what a run learned or took. verl's are
    known one by one, and left alone where they measure something else (files/names.py)."""
    strangers = [name.removeprefix(FOREIGN) for name in history.series if name.startswith(FOREIGN)]
    telling = [name for name in strangers if _tells(name.lower())]
    return [name for name in telling if not other_unit(name) and not name.startswith(MARKS)]


def _tells(name: str) -> bool:
    timed = any(word in name for word in TIMED) and not any(word in name for word in OTHER_TIMES)
    return timed or any(word in name for word in TELLING)


def _derived(history: History) -> dict[str, Series]:
    """The history's series, and the tokens of a step where only their rate was written."""
    series = dict(history.series)
    rate, time = series.get("tokens_per_second"), series.get("step_time")
    if rate is not None and time is not None and "tokens" not in series:
        steps, at, there = np.intersect1d(rate.steps, time.steps, return_indices=True)
        series["tokens"] = Series(name="tokens", steps=steps, values=rate.values[at] * time.values[there])
    return series


def _scalars(metrics: Mapping[str, float], last_step: int) -> dict[str, Series]:
    """A value that a run has only once, as a series with one point at its last step."""
    steps = np.array([last_step], dtype=np.int64)
    return {name: Series(name=name, steps=steps, values=np.array([value])) for name, value in metrics.items()}
