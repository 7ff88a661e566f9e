"""Benchmark histories as comparisons: five consecutive values against the next three, with known changes.

Read from NumPy's published benchmarks (perf/numpy-asv-*.jsonl.gz in a folder of data). The values around the judged
eight tell what happened, never those eight: `stable` if the 15 before and the 15 after have medians within 2 %, a
`step` if they differ by more and its best place is within the eight. Half of the series, by the hash of their names,
are `seen`: rules were chosen on these. The other half is only counted.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gate_data import series_of
from numpy.typing import NDArray

from canary_mlflow.gates import Run

K, M = 5, 3
CONTEXT = 15
PAST = 60
STABLE = 0.02
APART = 40  # values between two stable stretches of one series
NOISY = 6.0  # a step is this many standard errors of its medians
STEPS = 120  # of the runs that stand for single values; enough for any tier's warm-up and least values

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Stretch:
    """Eight values of one series (seconds): `baseline` (K,), `candidate` (M,), the values before them (`past`, up to
    PAST), and the size of the true change (log; 0 for a stable stretch)."""

    name: str
    seen: bool
    size: float
    baseline: Values
    candidate: Values
    past: Values


def stretches(folder: Path) -> list[Stretch]:
    """All stable stretches and all steps of the histories in `folder`/perf."""
    found = []
    for path in sorted((folder / "perf").glob("numpy-asv-*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            for line in file:
                held = json.loads(line)
                seconds = np.array([point[1] for point in held["points"]], dtype=float)
                found += stretches_of(held["series"], seconds[np.isfinite(seconds) & (seconds > 0)])
    return found


def as_runs(name: str, values: Values) -> list[Run]:
    """Each value as a run in which every step took that long."""
    return [
        Run(
            run_id=f"{name}{i}",
            seed=None,
            series={"step_time": series_of("step_time", [value] * STEPS, STEPS)},
            last_step=STEPS,
        )
        for i, value in enumerate(values)
    ]


def stretches_of(name: str, values: Values) -> Iterator[Stretch]:
    seen = hashlib.sha256(name.encode()).digest()[0] % 2 == 0
    logs, last = np.log(values), -APART
    for i in range(K + CONTEXT, len(values) - M - CONTEXT):
        before, after = logs[i - K - CONTEXT : i - K], logs[i + M : i + M + CONTEXT]
        size = float(np.median(after) - np.median(before))
        stable = abs(size) <= STABLE and i - last >= APART
        if stable:
            last = i
        elif size < math.log(1.05) or size < NOISY * _error(before, after) or not _best_place(logs, i):
            continue
        yield Stretch(
            name=f"{name}@{i}",
            seen=seen,
            size=0.0 if stable else size,
            baseline=values[i - K : i],
            candidate=values[i : i + M],
            past=values[max(0, i - K - PAST) : i - K],
        )


def _error(before: Values, after: Values) -> float:
    """Standard error of the difference of two medians."""
    spread = [1.4826 * float(np.median(np.abs(each - np.median(each)))) for each in (before, after)]
    return 1.25 * math.hypot(*spread) / math.sqrt(CONTEXT)


def _best_place(logs: Values, place: int) -> bool:
    """Whether no nearby place fits a step better, by the sum of absolute distances to the medians of both sides."""
    window = logs[place - K - CONTEXT : place + M + CONTEXT]

    def distance(at: int) -> float:
        return sum(float(np.abs(part - np.median(part)).sum()) for part in (window[:at], window[at:]))

    places = range(5, len(window) - 5)
    return min(places, key=distance) == K + CONTEXT
