"""Ends a process that is done, without taking down what it has loaded."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process without taking down torch and MLflow module by module, which takes up to a second while somebody
    waits: all that it had to say is written."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits, as Python would, for threads that are no daemons
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):  # nobody reads any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
