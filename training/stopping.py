"""Ctrl-C and SIGTERM, remembered: a library that swallows the exception they raise does not swallow the wish.

One Ctrl-C in some fifty, sent while a session opened its store, was lost that way, and the session trained to its end.
"""

from __future__ import annotations

import signal
from types import FrameType

from canary_mlflow.errors import Interrupted

_wish: list[BaseException] = []  # of this process: signals come to no other place


def listen() -> None:
    """From now on either signal raises, here and at the next `check`. Ctrl-C that is ignored (nohup) stays so."""
    _wish.clear()
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def check() -> None:
    """Raise what a signal asked for, if it has not ended the work yet."""
    if _wish:
        raise _wish[0]


def _interrupt(signum: int, frame: FrameType | None) -> None:
    _wish.append(KeyboardInterrupt())
    raise _wish[-1]


def _terminate(signum: int, frame: FrameType | None) -> None:
    _wish.append(Interrupted(f"stopped by {signal.Signals(signum).name}; the runs so far are recorded as FAILED"))
    raise _wish[-1]
