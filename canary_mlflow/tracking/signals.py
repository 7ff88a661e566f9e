"""SIGTERM and SIGHUP while a run is recorded: by default they would end it without a record."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

from canary_mlflow.tracking.describing.failures import STOPPING, Terminated


class TerminationHandler:
    """Makes them unwind like an exception, in the main thread and if nobody else handles them."""

    def __init__(self) -> None:
        self._ours: object = None
        self._pending: Terminated | None = None

    def install(self, record: Callable[[Terminated], None], ending: Callable[[], bool]) -> None:
        """From now on, each signal calls `record` with a Terminated and then raises it.

        While `ending` says that the end is already being recorded, `remove` raises it instead: when a rank dies, the
        others get an error and, before they have recorded it, torchrun's SIGTERM.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        free = [each for each in STOPPING if signal.getsignal(each) is signal.SIG_DFL]

        def stop(signum: int, frame: FrameType | None) -> None:
            for each in free:
                signal.signal(each, signal.SIG_IGN)  # a second one must not cut the recording short
            error = Terminated(signum)
            if ending():
                self._pending = error
                return
            record(error)
            raise error

        for each in free:
            signal.signal(each, stop)
        self._ours = stop

    def remove(self) -> None:
        """Go back to the default, unless somebody else has taken over. Raises Terminated if a signal came meanwhile."""
        if self._ours is not None and threading.current_thread() is threading.main_thread():
            for each in STOPPING:
                if signal.getsignal(each) is self._ours:
                    signal.signal(each, signal.SIG_DFL)
            self._ours = None
        pending, self._pending = self._pending, None
        if pending is not None:
            raise pending
