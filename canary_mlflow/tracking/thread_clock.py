"""CPU time of a thread that writes while another trains: part of the process's CPU time, but not of the training."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class ThreadClock:
    """CPU seconds of the thread that works inside `working`; any other thread may read them at each step."""

    def __init__(self) -> None:
        self._before = 0.0  # of threads that have ended
        self._latest = 0.0  # the current thread's, when it last stopped working
        self._thread: int | None = None
        self._working = False

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the CPU time of this thread."""
        if self._thread != threading.get_ident():
            self._before, self._latest = self._before + self._latest, 0.0
            self._thread = threading.get_ident()
        self._working = True
        try:
            yield
        finally:
            self._latest, self._working = time.thread_time(), False

    def seconds(self) -> float:
        """The CPU time so far. Reading another thread's clock takes 20 µs; an idle thread's clock stands still."""
        if self._working and self._thread is not None:
            return self._before + time.clock_gettime(time.pthread_getcpuclockid(self._thread))
        return self._before + self._latest
