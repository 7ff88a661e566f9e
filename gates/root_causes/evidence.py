"""The numbers of both sides for the root-cause rules: levels of series, and how much a side's own runs differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gates.model.records import Run, Series

WARMUP = 5
"""First steps, which no level includes."""
TAIL = 0.3
"""The last share of a run, by which its end is judged."""


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The runs of both sides. A side's level is the median of its runs' levels."""

    baseline: Sequence[Run]
    candidate: Sequence[Run]

    def has(self, *names: str) -> bool:
        """Whether both sides have runs with each of these series."""
        return all(
            any(name in run.series for run in side) for name in names for side in (self.baseline, self.candidate)
        )

    def level(self, name: str) -> tuple[float, float]:
        """A series' median step after warm-up: baseline, candidate; NaN without any."""
        return _median(_steady(run, name) for run in self.baseline), _median(
            _steady(run, name) for run in self.candidate
        )

    def peak(self, name: str) -> tuple[float, float]:
        """A series' highest step: baseline, candidate; NaN without any."""
        return _median(_highest(run, name) for run in self.baseline), _median(
            _highest(run, name) for run in self.candidate
        )

    def tail(self, name: str) -> tuple[float, float]:
        """The mean of a series' last third."""
        return _median(_end(run, name) for run in self.baseline), _median(_end(run, name) for run in self.candidate)

    def spread(self, name: str) -> float:
        """The largest distance between the ends of the baseline's runs; NaN for fewer than two runs."""
        ends = [value for run in self.baseline if math.isfinite(value := _end(run, name))]
        return max(ends) - min(ends) if len(ends) > 1 else math.nan

    def apart(self, name: str) -> bool:
        """Whether each run of the candidate is above all of the baseline's."""
        before, now = (
            [value for run in side if math.isfinite(value := _steady(run, name))]
            for side in (self.baseline, self.candidate)
        )
        return bool(before and now) and min(now) > max(before)

    def ratios(self, name: str) -> NDArray[np.float64]:
        """The candidate's values / the baseline's, step by step, as medians over runs; empty if no step compares."""
        before, now = _by_step(self.baseline, name), _by_step(self.candidate, name)
        shared = sorted(step for step in before.keys() & now.keys() if before[step] > 0)
        return np.array([now[step] / before[step] for step in shared])

    def per_iteration(self) -> tuple[float, float]:
        """Optimizer steps per iteration: baseline, candidate; NaN for trainings that do not iterate."""
        return _median(map(_updates, self.baseline)), _median(map(_updates, self.candidate))


def ratio(pair: tuple[float, float]) -> float:
    """Candidate / baseline; NaN if that tells nothing."""
    before, now = pair
    return now / before if math.isfinite(before) and math.isfinite(now) and before > 0 else math.nan


def _median(values: Iterator[float] | Sequence[float]) -> float:
    found = [value for value in values if math.isfinite(value)]
    return float(np.median(found)) if found else math.nan


def _finite(run: Run, name: str) -> NDArray[np.float64]:
    series: Series | None = run.series.get(name)
    return np.array([]) if series is None else series.finite_only().values


def _steady(run: Run, name: str) -> float:
    values = _finite(run, name)
    values = values[WARMUP:] if len(values) > 2 * WARMUP else values
    return float(np.median(values)) if len(values) else math.nan


def _highest(run: Run, name: str) -> float:
    return float(np.max(_finite(run, name), initial=-math.inf))  # without values: -inf, left out as not finite


def _end(run: Run, name: str) -> float:
    values = _finite(run, name)
    return float(np.mean(values[-max(1, round(TAIL * len(values))) :])) if len(values) else math.nan


def _by_step(runs: Sequence[Run], name: str) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for run in runs:
        series = run.series.get(name)
        for step, value in () if series is None else zip(series.steps.tolist(), series.values.tolist(), strict=True):
            if math.isfinite(value):
                found.setdefault(int(step), []).append(value)
    return {step: float(np.median(values)) for step, values in found.items()}


def _updates(run: Run) -> float:
    steps, iterations = run.series.get("learning_rate"), run.series.get("iteration_time")
    if steps is None or iterations is None or len(iterations.steps) < 2:
        return math.nan
    return float(np.median(np.diff(iterations.steps)))
