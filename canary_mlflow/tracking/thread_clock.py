"""CPU time of the threads that write while another trains: part of the process's CPU time, but not of the training."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_done = 0.0  # CPU seconds of all stretches of work that are over
_at_work: dict[int, float] = {}  # thread → its CPU time up to which it is counted


class ThreadClock:
    """Counts the CPU time of the thread that works inside `working`, until the end of its last stretch."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self._counted = 0.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the CPU time of this thread."""
        global _done
        me = threading.get_ident()
        if self._thread != me:
            self._thread, self._counted = me, 0.0
        with _lock:
            _at_work[me] = self._counted
        try:
            yield
        finally:
            with _lock:
                before, self._counted = self._counted, time.thread_time()
                _done += self._counted - before
                del _at_work[me]


def writing_seconds() -> float:
    """CPU seconds of all these threads of this process so far. Asked at each step, and nearly always one look at what
    is known: reading another thread's clock takes 20 µs, but an idle thread's clock stands still."""
    if not _at_work:
        return _done
    with _lock:
        working = ((time.pthread_getcpuclockid(thread), counted) for thread, counted in _at_work.items())
        return _done + sum(time.clock_gettime(clock) - counted for clock, counted in working)


def _alone() -> None:
    """Forget the parent's threads: to ask for the clock of one that does not exist ends the process."""
    global _lock
    _lock = threading.Lock()
    _at_work.clear()


os.register_at_fork(after_in_child=_alone)
