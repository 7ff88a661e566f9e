"""Memory at each step, of the GPU's allocator or of the process: its peak, and how fast it grows."""

from __future__ import annotations

import os
import resource
import sys
import weakref
from collections.abc import Callable
from typing import Any

import psutil

from canary_mlflow.tracking.probes import Probe, Row, Setting

MIB = 2**20
PEAK_UNIT = 1 / (MIB if sys.platform == "darwin" else 1024)  # macOS counts bytes, Linux KiB
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
        self._resident = resident_size()
        self._growth = Growth()

    def start(self, setting: Setting) -> None:
        if setting.device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()
            self._cuda = torch.cuda

    def step_ended(self, row: Row) -> None:
        if self._cuda is None:
            now = row["allocated_memory"] = self._resident() / MIB
            peak = resident_peak()
            row["peak_memory"] = peak if peak >= now else now  # the kernel updates the peak a little later
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
        self._slopes: list[float] = []  # in order

    def add(self, value: float) -> float | None:
        """Add the next step's value; return the slope per step if this point is kept and there are enough, else
        None."""
        self._step += 1
        if self._step <= WARMUP or (self._step - WARMUP) % self._every:
            return None
        self._keep((self._step, value))
        if len(self._points) > POINTS:
            self._every *= 2
            kept = [point for point in self._points if (point[0] - WARMUP) % self._every == 0]
            self._points, self._slopes = [], []
            for point in kept:
                self._keep(point)
        return middle(self._slopes) if len(self._points) >= FEWEST else None

    def _keep(self, point: tuple[int, float]) -> None:
        step, value = point
        self._slopes += [(value - earlier) / (step - at) for at, earlier in self._points]
        self._slopes.sort()  # most of them already are, which is quick
        self._points.append(point)


def middle(ordered: list[float]) -> float:
    """The median of numbers in order."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def resident_size() -> Callable[[], int]:
    """A function that returns the bytes of this process's resident set; on Linux from a file that stays open, as psutil
    takes ten times as long to open it anew."""
    try:
        file, page = os.open("/proc/self/statm", os.O_RDONLY), os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        process = psutil.Process()
        return lambda: int(process.memory_info().rss)

    def read() -> int:
        return int(os.pread(file, 128, 0).split(None, 2)[1]) * page

    weakref.finalize(read, os.close, file)  # a file object would warn that nobody closed it
    return read


def resident_peak() -> float:
    """MiB of this process's largest resident set."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT
