"""Signals that end work from outside, as an exception: what was begun is ended, and its end is recorded."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import PurePath
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGHUP)
"""SIGHUP comes when a terminal is closed."""

PATIENCE = 10.0  # seconds for a call to end that no exception may cut short; a run has 20 to record its end


class Terminated(SystemExit):
    """SIGTERM or SIGHUP arrived; unwinds like SystemExit, so that a run can still record how it ended. Not an
    Exception: code that tolerates, say, a failed picture must not swallow it."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signum).name}"


def terminate(signum: int, frame: FrameType | None) -> None:
    """A signal handler that unwinds. No second signal, Ctrl-C or other, may cut short the recording of the first."""
    if after_call(frame, partial(terminate, signum, None)):
        return
    for each in (signal.SIGINT, *STOPPING):
        signal.signal(each, signal.SIG_IGN)
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated(signum)


def after_call(frame: FrameType | None, act: Callable[[], None]) -> bool:
    """If a signal came amid a call that no exception may cut short, let `act` come once it has ended; return whether.

    An exception raised in the middle of SQLAlchemy's own work can leave the transaction open: the recording of the end
    would wait for a lock that this process itself holds. Python swallows one that is raised in a weakref's callback.
    """
    caller = outer_frame(frame)
    if caller is None:
        return False
    if not isinstance(sys.gettrace(), _Afterwards):  # else an earlier signal waits already
        _Afterwards(caller, act)
    return True


def outer_frame(frame: FrameType | None) -> FrameType | None:
    """The frame that made such a call, if this frame belongs to one; else None."""
    found = None
    while frame is not None:
        path = PurePath(frame.f_code.co_filename)
        if "sqlalchemy" in path.parts or path.name in ("sqlalchemy_store.py", "weakref.py"):
            found = frame.f_back
        frame = frame.f_back
    return found


class _Afterwards:
    """Calls `act` at the next line of a frame, or wherever the program is when the patience is over. It does so as
    Python's tracing function: nothing else can raise an exception exactly when a call has ended."""

    def __init__(self, frame: FrameType, act: Callable[[], None]) -> None:
        self.frame, self.act, self.until = frame, act, time.monotonic() + PATIENCE
        self.before = sys.gettrace()  # a debugger's, or that of a coverage tool
        frame.f_trace = self
        sys.settrace(self)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if frame is self.frame or time.monotonic() > self.until:
            sys.settrace(self.before)
            self.frame.f_trace = None
            self.act()


class TerminationHandler:
    """Lets SIGTERM and SIGHUP unwind like an exception while a run is recorded, in the main thread and if nobody else
    handles them: by default they would end the run without a record."""

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
            if not ending() and after_call(frame, partial(stop, signum, None)):
                return
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
