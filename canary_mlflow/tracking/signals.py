"""Signals that end work from outside. A handler notes the signal; whoever does the work looks, and unwinds there.

So no exception comes amid what would be left half done, such as a transaction, for whose lock the recording of the end
would then wait. In a wait (`waiting()`) nothing is half done, and the signal raises at once. A second signal does not
wait for anybody to look.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

STOPPING = (signal.SIGTERM, signal.SIGHUP)
"""SIGHUP comes when a terminal is closed."""

PATIENCE = 10.0  # seconds

_T = TypeVar("_T")


class Terminated(SystemExit):
    """SIGTERM or SIGHUP arrived; unwinds like SystemExit, so that a run can still record how it ended. Not an
    Exception: code that tolerates, say, a failed picture must not swallow it."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signum).name}"


@dataclass
class _State:
    process: int = 0
    noted: int = 0  # the signal that came, 0 for none
    unwinds: bool = False  # somebody obeys it: nothing may cut short the recording of the end
    waits: int = 0
    records: int = 0  # ends that are being written down
    looks: Callable[[FrameType | None], bool] | None = None  # whether somebody will, where a signal comes


_now = _State()


def expect(looks: Callable[[FrameType | None], bool] | None = None) -> None:
    """From now on signals are new ones, of this process. `looks`: whether whoever runs at this frame will look."""
    _now.process, _now.noted, _now.unwinds, _now.looks = os.getpid(), 0, False, looks


def notice(signum: int, frame: FrameType | None) -> None:
    """The handler. A process that was forked off meanwhile has nobody who looks, and ends."""
    if os.getpid() != _now.process:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
        return
    if _now.unwinds:
        return
    again, _now.noted = bool(_now.noted), _now.noted or signum
    if _now.records:
        return
    error = _error()
    if _now.looks is not None and (again or not _now.looks(frame)):
        _now.noted = 0  # as Python's own handler does: the next training begins without it
        raise error
    if again or _now.waits:
        raise error


def came() -> bool:
    """Whether a signal was noted, obeyed or not."""
    return bool(_now.noted)


def noted() -> KeyboardInterrupt | Terminated | None:
    """What to raise, if a signal came that nobody has obeyed yet; whoever asks obeys it."""
    if not _now.noted or _now.unwinds:
        return None
    _now.unwinds = True
    return _error()


def obey() -> None:
    """Raise KeyboardInterrupt or Terminated if such a signal came."""
    if error := noted():
        raise error


def _error() -> KeyboardInterrupt | Terminated:
    return KeyboardInterrupt() if _now.noted == signal.SIGINT else Terminated(_now.noted)


@contextmanager
def recording() -> Iterator[None]:
    """While an end is written down, for whatever reason, no signal raises: if a rank dies, the others get an error and,
    before they have recorded it, torchrun's SIGTERM."""
    _now.records += 1
    try:
        yield
    finally:
        _now.records -= 1


@contextmanager
def waiting() -> Iterator[None]:
    """Around a wait, and nothing else: a signal that came raises, and one that comes. In another thread than the main
    one nothing does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _now.waits += 1
    try:
        obey()  # after the line above, so that none is missed between
        yield
    except (KeyboardInterrupt, Terminated):
        _now.unwinds = bool(_now.noted)
        raise
    finally:
        _now.waits -= 1


def apart(work: Callable[[], _T], end: Callable[[], None]) -> _T:
    """Do the work in another thread, where no signal raises, and wait for it where one may. `end`: ends what the work
    waits for, if one does."""
    over = threading.Event()  # not join(): an exception within it makes Python 3.11 take the thread for ended
    found: list[_T] = []
    failed: list[BaseException] = []

    def do() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            failed.append(error)
        over.set()

    threading.Thread(target=do, daemon=True).start()
    try:
        with waiting():
            over.wait()
    except BaseException:
        end()
        over.wait(PATIENCE)  # it may have an end to record, too
        raise
    if failed:
        raise failed[0]
    return found[0]


class TerminationHandler:
    """Lets SIGTERM, SIGHUP and Ctrl-C end a training in somebody's own script between two steps, in the main thread and
    if nobody else handles them: by default they would end the run without a record, or amid the writing of one."""

    def __init__(self) -> None:
        self._free: list[int] = []

    def install(self, trains: Callable[[FrameType | None], bool]) -> None:
        """From now on, signals are noted while the training goes on: `trains` says so of a frame. A training that broke
        off in a notebook is not over for its callback, but nobody looks any more."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._free = [each for each in STOPPING if signal.getsignal(each) is signal.SIG_DFL]
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._free.append(signal.SIGINT)
        if self._free or _now.looks is not None:  # also where a training that broke off has left its handlers
            expect(trains)
        for each in self._free:
            signal.signal(each, notice)

    def remove(self) -> None:
        """Go back to the default, unless somebody else has taken over. Raises what came when nobody looked any more."""
        free, self._free = self._free, []
        if not free or threading.current_thread() is not threading.main_thread():
            return
        for each in free:
            if signal.getsignal(each) is notice:
                signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
        error = noted()
        expect()
        if error is not None:
            raise error
