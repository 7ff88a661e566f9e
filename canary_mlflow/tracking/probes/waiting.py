"""How long a training's thread waits: for a disk, a network, other processes, or because it sleeps."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

NAP = 1e-6  # seconds slept at the start, to see whether the kernel counts it


class Waiting:
    """Of the thread that makes it, the time in which it neither computed nor stood in line for a core. Linux only.

    Whoever waits gives up the core, and the kernel counts how often a thread does. While that count stands still,
    nothing was waited for: then this one call is all that a step costs, as reading the clock and the time in line takes
    three times as long. Where the kernel does not count, both are read every time.
    """

    def __init__(self) -> None:
        """Raises OSError where the kernel does not tell how long a thread stands in line."""
        self._line: int | None = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self.usage: Any = resource.getrusage(resource.RUSAGE_THREAD)  # as the kernel gave it last
        time.sleep(NAP)
        self._counted = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw > self.usage.ru_nvcsw
        self._times = -1  # how often the core was given up when the clocks were read
        self._read = self._seconds = 0.0

    def seconds(self, *, afresh: bool = False) -> float:
        """Seconds of waiting since an unknown moment. `afresh`: read the clocks in any case. By what they have run on
        without a wait (a virtual machine that was halted), the next wait is then not longer."""
        usage = self.usage = resource.getrusage(resource.RUSAGE_THREAD)
        waited = usage.ru_nvcsw != self._times or not self._counted
        if (waited or afresh) and self._line is not None:
            in_line = int(os.pread(self._line, 64, 0).split()[1]) / 1e9
            read = time.perf_counter() - time.thread_time() - in_line
            if waited:
                self._seconds += read - self._read
            self._read, self._times = read, usage.ru_nvcsw
        return self._seconds

    def close(self) -> None:
        """Leave no file open; no more seconds are counted."""
        if self._line is not None:
            os.close(self._line)
            self._line = None
