"""How soon a failure can be seen at all in what a session logged: a family of plain detectors, each at its best.

A detector is a series, a direction, a statistic and a number of rows w, from row 20 on. The statistics, of the mean of
the last w rows: the *level* itself; its distance from the mean of all rows before (*past*), from that of the w rows
before (*step*) and from its best so far (*lost*), in standard deviations of the run's own rows w rows ago; the *share*
of what had been gained that is lost again; the logarithm of its *ratio* to the rows before; and the *slope* of the last
w rows. Each has one limit for all sessions of a trainer type, the lowest that at most 2 % of its healthy ones exceed.
A value that is not finite is seen by every detector.

Of the sessions whose fault struck in the second half: how many are seen within 15 % of the session after the failure
began (watch_recorded.py), by the watch (its STOP and its CRITICAL), by the best detector, by the best one of the other
half of the sessions, which nothing was chosen on, and by any detector: each with its own 2 % of false alarms (more than
2 % together), and with the limits that no healthy session exceeds. Both of these are chosen by looking at the sessions
that they are counted on, so no watch can be expected to reach them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import watch_peers as peers
from numpy.lib.stride_tricks import sliding_window_view
from watch_recorded import ALGOS, SOON, STEPS, failed_from, healthy_and_failing, read, rows_of, share

from canary_mlflow.gates.watch import Level
from canary_mlflow.policies import load_watch

WINDOWS, LEAST, FALSE = (1, 3, 5, 10, 20), 20, 0.02
Table = np.ndarray[Any, np.dtype[np.float64]]
Detector = tuple[str, str, str, int]  # series, direction, statistic, rows


def bound(arguments: argparse.Namespace) -> dict[str, Any]:
    """A line for each trainer type."""
    sessions = [one for path in arguments.files for one in read(path)]
    print(f"{'':8s}{'sessions':>9s}{'STOP':>20s}{'CRITICAL':>20s}{'best detector':>20s}{'of the other half':>20s}"
          f"{'any, 2 % each':>20s}{'any, none healthy':>20s}   best detector")  # fmt: skip
    result: dict[str, Any] = {"benchmark": "watch bound"}
    for algo in ALGOS:
        healthy, failing = healthy_and_failing([one for one in sessions if one["algo"] == algo])
        late = [one for one in failing if one["onset"] > STEPS // 2]
        if healthy and late:
            result[algo] = _line(algo, healthy, late)
    return result


def _line(algo: str, healthy: list[dict[str, Any]], late: list[dict[str, Any]]) -> dict[str, Any]:
    soon = np.array([_soon(one) for one in late])
    broken = np.array([_broken(one) for one in late])
    names, seen, strictly = [], [], []
    for name, (calm, troubled) in _detectors(healthy, late):
        highest = np.sort(_highest(calm))[::-1]
        names.append(name)
        seen.append(broken | (_highest(np.where(soon, troubled, np.nan)) > highest[int(FALSE * len(highest))]))
        strictly.append(broken | (_highest(np.where(soon, troubled, np.nan)) > highest[0]))
    found = np.array(seen)
    best = int(found.sum(1).argmax())
    half = np.arange(len(late)) % 2 == 0
    other = sum(int(found[found[:, one].sum(1).argmax(), ~one].sum()) for one in (half, ~half))
    counts = {
        "STOP": _by_watch(algo, late, Level.STOP),
        "CRITICAL": _by_watch(algo, late, Level.CRITICAL),
        "best": int(found[best].sum()),
        "other_half": other,
        "any": int(found.any(0).sum()),
        "any_strictly": int(np.array(strictly).any(0).sum()),
    }
    series, direction, statistic, rows = names[best]
    print(f"{algo:8s}{len(late):9d}" + "".join(f"{share(count, len(late)):>20s}" for count in counts.values())
          + f"   {series} {direction}, {statistic}, {rows} rows (of {len(names)})")  # fmt: skip
    return {"sessions": len(late), "healthy": len(healthy), **counts, "detector": names[best]}


def _soon(one: dict[str, Any]) -> list[bool]:
    """The rows in which it would be seen in time: from the fault on."""
    last = (failed_from(one) or 0) + SOON * STEPS
    return [one["onset"] <= row <= last for row in range(1, STEPS + 1)]


def _broken(one: dict[str, Any]) -> bool:
    """Whether a value is not finite, in time."""
    last = (failed_from(one) or 0) + SOON * STEPS
    return any(not math.isfinite(value) for step, row in rows_of(one) if step <= last for value in row.values())


def _by_watch(algo: str, late: list[dict[str, Any]], level: Level) -> int:
    said = peers.warnings(load_watch(), algo)
    return sum(
        any(
            one["onset"] <= warning.step <= (failed_from(one) or 0) + SOON * STEPS
            for warning in said(rows_of(one))
            if warning.level >= level
        )
        for one in late
    )


def _highest(values: Table) -> Table:
    """Of each session, from row `LEAST` on; minus infinity where the detector has no value."""
    found = np.where(np.isnan(values[:, LEAST - 1 :]), -np.inf, values[:, LEAST - 1 :])
    return np.max(found, axis=1)


def _detectors(healthy: list[Any], late: list[Any]) -> Iterator[tuple[Detector, tuple[Table, Table]]]:
    """Each detector with its values in the healthy and in the late sessions, one row for each session."""
    names = sorted({name for one in healthy for name in one["series"]} - {"learning_rate"})
    for name in names:
        both = np.array([_column(one, name) for one in (*healthy, *late)])
        for rows in WINDOWS:
            for direction, sign in (("up", 1.0), ("down", -1.0)):
                for statistic, values in _statistics(sign * both, rows):
                    yield (name, direction, statistic, rows), (values[: len(healthy)], values[len(healthy) :])


def _column(one: dict[str, Any], name: str) -> list[float]:
    values = [math.nan if value is None else float(value) for value in one["series"].get(name, ())][:STEPS]
    return [value if math.isfinite(value) else math.nan for value in values] + [math.nan] * (STEPS - len(values))


def _statistics(values: Table, rows: int) -> Iterator[tuple[str, Table]]:
    """Name and value at each row; NaN where there are too few rows. Higher is worse."""
    ahead = np.full((len(values), rows - 1), np.nan)
    level = np.hstack([ahead, sliding_window_view(values, rows, axis=1).mean(-1)])
    count = np.arange(1, STEPS + 1)
    past = _back(np.cumsum(values, axis=1) / count, rows)
    noise = _back(_noise(values), rows)
    best = np.fmin.accumulate(level, axis=1)
    first = np.nanmax(np.where(count == rows, level, np.nan), axis=1, keepdims=True, initial=-np.inf)
    yield "level", level
    yield "past", (level - past) / noise
    yield "step", (level - _back(level, rows)) / noise
    yield "lost", (level - best) / noise
    yield "share", (level - best) / np.maximum(first - best, noise / math.sqrt(rows))
    with np.errstate(divide="ignore", invalid="ignore"):
        yield "ratio", np.where(level * past > 0, np.sign(level) * np.log(level / past), np.nan)
    if rows > 1:
        line = np.arange(rows) - (rows - 1) / 2
        yield "slope", np.hstack([ahead, sliding_window_view(values, rows, axis=1) @ line]) / (line @ line) / noise


def _back(values: Table, rows: int) -> Table:
    """The values of so many rows before."""
    return np.hstack([np.full((len(values), rows), np.nan), values[:, :-rows]])


def _noise(values: Table) -> Table:
    """Standard deviation of single rows so far, from the differences of neighbours."""
    changes = np.abs(np.diff(values, axis=1, prepend=values[:, :1]))
    mean = np.cumsum(changes, axis=1) / np.maximum(np.arange(STEPS), 1)
    return np.maximum(0.886 * mean, 1e-6)
