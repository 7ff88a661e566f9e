"""Ctrl-C while Python still loads libraries: one line and exit code 4 instead of a page about imports."""

from __future__ import annotations

import os
import signal
from types import FrameType

OUTSIDE = 4


def interruptible() -> None:
    """Leave on Ctrl-C, until `canary_mlflow.edge.unwinding` takes over. A Ctrl-C that is ignored stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def _leave(signum: int, frame: FrameType | None) -> None:
    os.write(2, b"canary: interrupted\n")
    os._exit(OUTSIDE)  # nothing has started that must be ended
