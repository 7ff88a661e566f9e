"""Signals that end work from outside, as an exception: what was begun is ended, and its end is recorded."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from inspect import CO_GENERATOR
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGHUP)
"""SIGHUP comes when a terminal is closed."""

Handler = Callable[[int, FrameType | None], None]
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
    come_again(signum, terminate)
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated(signum)


def come_again(signum: int, handler: Handler) -> None:
    """Send the signal again if Python swallows the exception that the handler raises next, as in `__del__` and in a
    weakref's callback: nobody would ever see that it came."""
    before = sys.unraisablehook

    def swallowed(what: sys.UnraisableHookArgs) -> None:
        sys.unraisablehook = before
        if isinstance(what.exc_value, KeyboardInterrupt | Terminated):
            signal.signal(signum, handler)
            _thread.start_new_thread(_send, (signum,))  # sent from here, it would be handled and swallowed here
        else:
            before(what)
            come_again(signum, handler)

    sys.unraisablehook = swallowed


def _send(signum: int) -> None:
    time.sleep(0.001)
    os.kill(os.getpid(), signum)


def interrupt(signum: int, frame: FrameType | None) -> None:
    """Python's own handler of Ctrl-C, but after such a call."""
    if not after_call(frame, partial(interrupt, signum, None)):
        signal.default_int_handler(signum, frame)


def after_call(frame: FrameType | None, act: Callable[[], None]) -> bool:
    """If a signal came amid a call that no exception may cut short, let `act` come once it has ended; return whether.

    An exception raised in the middle of SQLAlchemy's own work can leave the transaction open: the recording of the end
    would wait for a lock that this process itself holds.
    """
    call, waits = outermost(frame), sys.gettrace()
    if isinstance(waits, _Afterwards):  # with an earlier signal, which this one overtakes if it comes amid no call
        if call is None:
            waits.leave()
    elif call is not None:
        _Afterwards(call, act)
    return call is not None


def outermost(frame: FrameType | None) -> FrameType | None:
    """The outermost frame of such a call, if this frame belongs to one; else None."""
    found = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] == "sqlalchemy" or module.endswith(".sqlalchemy_store"):
            found = frame
        frame = frame.f_back
    return found


class _Afterwards:
    """Calls `act` when a call returns, or wherever the program is when the patience is over. It does so as Python's
    tracing function: nothing else can raise an exception as if the call itself had raised it, so that each `with`,
    `try` and `finally` around the call does its work."""

    def __init__(self, call: FrameType, act: Callable[[], None]) -> None:
        self.act, self.until = act, time.monotonic() + PATIENCE
        self.before = sys.gettrace()  # a debugger's, or that of a coverage tool
        self.frame, self.events = call, {"return"}
        if call.f_code.co_flags & CO_GENERATOR and call.f_back:  # which must not end at its `yield`
            self.frame, self.events = call.f_back, {"line", "return"}
        self.frame.f_trace = self
        sys.settrace(self)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if (frame is self.frame and event in self.events) or time.monotonic() > self.until:
            self.leave()
            self.act()

    def leave(self) -> None:
        """Trace no more."""
        sys.settrace(self.before)
        self.frame.f_trace = None


class TerminationHandler:
    """Lets SIGTERM and SIGHUP unwind like an exception while a run is recorded, in the main thread and if nobody else
    handles them: by default they would end the run without a record. Ctrl-C stays Python's KeyboardInterrupt."""

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
            come_again(signum, stop)
            raise error

        for each in free:
            signal.signal(each, stop)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        self._ours = stop

    def remove(self) -> None:
        """Go back to the default, unless somebody else has taken over. Raises Terminated if a signal came meanwhile."""
        if self._ours is not None and threading.current_thread() is threading.main_thread():
            for each in STOPPING:
                if signal.getsignal(each) is self._ours:
                    signal.signal(each, signal.SIG_DFL)
            if signal.getsignal(signal.SIGINT) is interrupt:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            self._ours = None
        pending, self._pending = self._pending, None
        if pending is not None:
            raise pending
