"""Loading libraries without the garbage collector, which goes over all that has been loaded again and again.

What modules leave behind stays, hundreds of thousands of objects: most of what a collection costs while they come
(benchmarks/smoke.py prints the CPU seconds of sessions).
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
    """For imports that stand together, and for the rows of a ledger. What they made is never looked at again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def quiet_4_bit() -> None:
    """PEFT imports bitsandbytes, which on some CPUs says each time that a faster 4-bit kernel could be installed."""
    _OF_4_BIT.setLevel(logging.ERROR)


@contextmanager
def quietly_4_bit() -> Iterator[None]:
    """The same for imports in somebody else's process, which keeps its own settings."""
    before = _OF_4_BIT.level
    quiet_4_bit()
    try:
        yield
    finally:
        _OF_4_BIT.setLevel(before)


def collect_seldom() -> None:
    """For a command, which imports here and there until it ends; cycles are collected all the same."""
    gc.set_threshold(SELDOM)
