"""Memory at each step, of the GPU's allocator or of the process: its peak, and how fast it grows."""

from __future__ import annotations

import resource
import sys
from typing import Any

import numpy as np
import psutil

from canary_mlflow.tracking.probes import Probe, Row, Setting

MIB = 2**20
WARMUP = 5  # steps that are left out of the growth: first batches fill caches
POINTS = 32  # from which the growth is computed; a longer run keeps every second, fourth, … step
FEWEST = 6


class Memory(Probe):
    """MiB at the end of each step: `allocated_memory`, `peak_memory` so far, and on CUDA `reserved_memory`.

    On CUDA these are what torch's allocator gave out and held on this process's device since training began; otherwise
    the process's resident set, with its peak since the process started, which is why each run needs a fresh process.
    `memory_growth` is the robust slope of allocated_memory over the run so far, in MiB per step; its last value counts
    for the run.
    """

    name = "memory"

    def __init__(self) -> None:
        self._cuda: Any = None
        self._process = psutil.Process()
        self._growth = Growth()

    def start(self, setting: Setting) -> None:
        if setting.device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()
            self._cuda = torch.cuda

    def step_ended(self, row: Row) -> None:
        if self._cuda is None:
            row["allocated_memory"] = self._process.memory_info().rss / MIB
            # The kernel updates the peak a little later than the current value.
            row["peak_memory"] = max(resident_peak(), row["allocated_memory"])
        else:
            # One call instead of three by memory_allocated(), max_memory_allocated() and max_memory_reserved().
            stats = self._cuda.memory_stats()
            row["allocated_memory"] = stats["allocated_bytes.all.current"] / MIB
            row["peak_memory"] = stats["allocated_bytes.all.peak"] / MIB
            row["reserved_memory"] = stats["reserved_bytes.all.peak"] / MIB
        growth = self._growth.add(row["allocated_memory"])
        if growth is not None:
            row["memory_growth"] = growth


class Growth:
    """The median slope between all pairs of kept points (Theil-Sen), which one jump or a third of outliers cannot
    change."""

    def __init__(self) -> None:
        self._step = 0
        self._every = 1
        self._points: list[tuple[int, float]] = []

    def add(self, value: float) -> float | None:
        """Add the next step's value; return the slope per step if this point is kept and there are enough, else
        None."""
        self._step += 1
        if self._step <= WARMUP or (self._step - WARMUP) % self._every:
            return None
        self._points.append((self._step, value))
        if len(self._points) > POINTS:
            self._every *= 2
            self._points = [point for point in self._points if (point[0] - WARMUP) % self._every == 0]
        return slope(self._points) if len(self._points) >= FEWEST else None


def slope(points: list[tuple[int, float]]) -> float:
    """The median of the slopes between all pairs of (step, value)."""
    steps, values = np.array(points, dtype=np.float64).T
    first, second = np.triu_indices(len(points), 1)
    return float(np.median((values[second] - values[first]) / (steps[second] - steps[first])))


def resident_peak() -> float:
    """MiB of this process's largest resident set."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (MIB if sys.platform == "darwin" else 1024)  # macOS counts bytes, Linux KiB
