"""A signal while Python still loads libraries: one line and exit code 4 instead of a page about imports, or nothing."""

from __future__ import annotations

import os
import signal
from types import FrameType

OUTSIDE = 4


def interruptible() -> None:
    """Leave on a signal, until `canary_mlflow.edge.unwinding` takes over. One that is ignored stays ignored."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(each, _leave)


def _leave(signum: int, frame: FrameType | None) -> None:
    how = "interrupted" if signum == signal.SIGINT else f"stopped by {signal.Signals(signum).name}"
    os.write(2, f"canary: {how}\n".encode())
    os._exit(OUTSIDE)  # nothing has started that must be ended
