"""CPU time of the threads that write while another trains: part of the process's CPU time, but not of the training."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_lock = threading.Lock()  # of the writers; a training's own thread, which a signal may hold up anywhere, never takes it
_state: tuple[float, dict[int, tuple[int, float]]] = (0.0, {})
"""CPU seconds of all stretches of work that are over; thread → its clock, and up to where that is counted. Replaced as
a whole, so that a reader needs no lock."""


class ThreadClock:
    """Counts the CPU time of the thread inside `working`; `writing_seconds` adds a stretch that still goes on."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None  # not its number, which the next thread may get
        self._counted = 0.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the CPU time of this thread."""
        global _state
        me = threading.get_ident()
        if self._thread is not threading.current_thread():
            self._thread, self._counted = threading.current_thread(), 0.0
        with _lock:
            done, at_work = _state
            _state = done, {**at_work, me: (time.pthread_getcpuclockid(me), self._counted)}
        try:
            yield
        finally:
            with _lock:
                done, at_work = _state
                before, self._counted = self._counted, time.thread_time()
                left = {thread: one for thread, one in at_work.items() if thread != me}
                _state = done + self._counted - before, left


def writing_seconds() -> float:
    """CPU seconds of all these threads of this process so far. Asked at each step, and nearly always one look at what
    is known: an idle thread's clock stands still."""
    done, at_work = _state
    for clock, counted in at_work.values():
        with suppress(OSError):  # it has just ended
            done += time.clock_gettime(clock) - counted
    return done


def _alone() -> None:
    """Forget the parent's threads."""
    global _lock, _state
    _lock, _state = threading.Lock(), (_state[0], {})


os.register_at_fork(after_in_child=_alone)
