"""Memory at each step, of the GPU's allocator or of the process: its peak, and how fast it grows."""

from __future__ import annotations

import os
import resource
import sys
import weakref
from collections.abc import Callable
from typing import Any

import psutil

from canary_mlflow.tracking.probes import BEAT, Probe, Row, Setting
from canary_mlflow.tracking.probes.clock import Clock

MIB = 2**20
PEAK_UNIT = 1 / (MIB if sys.platform == "darwin" else 1024)  # macOS counts bytes, Linux KiB
WARMUP = BEAT  # steps that are left out of the growth: first batches fill caches
POINTS = 32  # from which the growth is computed; a longer run keeps every second, fourth, … step
FEWEST = 6


class Memory(Probe):
    """MiB at the end of each step: `allocated_memory`, `peak_memory` so far, and on CUDA `reserved_memory`.

    On CUDA these are what torch's allocator gave out and held on this process's device since training began; otherwise
    the process's resident set, at the first steps and then at every BEATth, as its file costs a small step more than
    the rest of this probe, with its peak since the process started, which is why each run needs a fresh process.
    An evaluation after the training counts: without its memory there is no number to judge by.
    `memory_growth` is the robust slope of allocated_memory over the run so far, in MiB per step; its last value counts
    for the run.
    """

    name = "memory"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock  # which has just asked the kernel for more than it needs itself
        self._cuda: Any = None
        self._resident = resident_size()
        self._highest = 0.0
        self._growth = Growth()

    def start(self, setting: Setting) -> None:
        if setting.device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()
            self._cuda = torch.cuda

    def step_ended(self, row: Row) -> None:
        due = self._growth.due()
        if self._cuda is None:
            self._read_resident(row, due)
        else:
            # One call instead of three by memory_allocated(), max_memory_allocated() and max_memory_reserved().
            stats = self._cuda.memory_stats()
            row["allocated_memory"] = stats["allocated_bytes.all.current"] / MIB
            row["peak_memory"] = stats["allocated_bytes.all.peak"] / MIB
            row["reserved_memory"] = stats["reserved_bytes.all.peak"] / MIB
        if due:
            growth = self._growth.add(row["allocated_memory"])
            if growth is not None:
                row["memory_growth"] = growth

    def evaluated(self, row: Row, last: Row) -> None:
        peak = resident_peak() if self._cuda is None else self._cuda.max_memory_allocated() / MIB
        row["peak_memory"] = max(peak, last.get("peak_memory", peak))  # which may be another rank's

    def _read_resident(self, row: Row, due: bool) -> None:
        usage, self._clock.usage = self._clock.usage, None
        peak = resident_peak() if usage is None else usage.ru_maxrss * PEAK_UNIT
        if due or self._growth.step <= WARMUP or self._growth.step % BEAT == 0:
            now = row["allocated_memory"] = self._resident() / MIB
            if now > self._highest:
                self._highest = now  # the kernel updates the peak a little later
        row["peak_memory"] = peak if peak >= self._highest else self._highest


class Growth:
    """The median slope between all pairs of kept points (Theil-Sen), which one jump or a third of outliers cannot
    change."""

    def __init__(self) -> None:
        self.step = 0
        self._every = 1
        self._points: list[tuple[int, float]] = []
        self._slopes: list[float] = []  # in order

    def due(self) -> bool:
        """Go on to the next step; whether its value is wanted."""
        self.step += 1
        return self.step > WARMUP and not (self.step - WARMUP) % self._every

    def add(self, value: float) -> float | None:
        """Keep the value of a step that is due; return the slope per step if there are enough, else None."""
        self._keep((self.step, value))
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
