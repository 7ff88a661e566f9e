"""Ctrl-C while Python still loads libraries: one line and exit code 4, and not a page about somebody's imports."""

from __future__ import annotations

import os
import signal
from types import FrameType

OUTSIDE = 4


def interruptible() -> None:
    """Until somebody else takes over (`canary_mlflow.edge.unwinding`); where Ctrl-C is ignored it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def _leave(signum: int, frame: FrameType | None) -> None:
    os.write(2, b"canary: interrupted\n")
    os._exit(OUTSIDE)  # nothing has begun that would have to be ended
