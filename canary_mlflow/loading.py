"""Loading libraries without the garbage collector, which would walk over everything loaded so far again and again.

Modules leave hundreds of thousands of objects that stay alive; walking over them is most of what collections cost
during imports (benchmarks/smoke.py prints the CPU seconds of sessions).
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 50_000  # objects; Python's own is 700 or 2000
_OF_4_BIT = logging.getLogger("bitsandbytes.backends.cpu.ops")


@contextmanager
def without_collecting() -> Iterator[None]:
    """Switch the collector off, for a block of imports or the rows of a ledger; it never visits what they made."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def quiet_4_bit() -> None:
    """Silence bitsandbytes, which PEFT imports: on some CPUs it advises each time to install a faster 4-bit kernel."""
    _OF_4_BIT.setLevel(logging.ERROR)


@contextmanager
def quietly_4_bit() -> Iterator[None]:
    """The same for imports in a user's process, whose own settings are restored."""
    before = _OF_4_BIT.level
    quiet_4_bit()
    try:
        yield
    finally:
        _OF_4_BIT.setLevel(before)


def collect_seldom() -> None:
    """Collect less often, for a command, which imports here and there until it ends; cycles are still collected."""
    gc.set_threshold(SELDOM)
