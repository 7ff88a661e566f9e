"""Files of one JSON object per line, written while training goes on."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class LineFile:
    """Appends lines, each handed to the operating system at once: what a killed process wrote is kept.

    A line for which the disk has no room is not left half written. No file is made before the first line. `alone`:
    opening raises BlockingIOError while another process writes it.
    """

    def __init__(self, path: Path, *, alone: bool = False) -> None:
        self.path = path
        self.size = 0  # bytes of whole lines
        self._alone = alone
        self._descriptor: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has been opened, and not closed since."""
        return self._descriptor is not None

    def append(self, line: str) -> None:
        """Add a line. Raises OSError when it cannot be kept."""
        self.write(line.encode() + b"\n")

    def write(self, content: bytes) -> None:
        """Add whole lines. Raises OSError when they cannot be kept."""
        self.open()
        assert self._descriptor is not None
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(content)

    def lines(self, start: int) -> Iterator[bytes]:
        """The lines from this byte on, also of a file that somebody has removed; none while it is closed."""
        if self._descriptor is not None:
            with os.fdopen(os.dup(self._descriptor), "rb") as file:
                file.seek(start)
                yield from file

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def open(self) -> None:
        """Open the file, unless it is open. Raises OSError."""
        if self._descriptor is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # The store's address and a run's configuration are nobody else's business.
        found = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if self._alone:
                _lock(found)
            self.size = os.fstat(found).st_size
            if self.size and os.pread(found, 1, self.size - 1) != b"\n":  # cut short when its process was killed
                self.size += os.write(found, b"\n")
        except OSError:
            os.close(found)
            raise
        self._descriptor = found


def _lock(descriptor: int) -> None:
    """Keep others from the file until it is closed. Raises BlockingIOError if somebody has it, or has just removed
    it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a filesystem without locks
        return
    if not os.fstat(descriptor).st_nlink:
        raise BlockingIOError(errno.EAGAIN, "was removed meanwhile")


def to_line(content: Mapping[str, Any]) -> str:
    """A JSON object on one line; its floats must be finite, see `to_json`."""
    return json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)


def to_json(value: float) -> float | str:
    """The value for JSON; NaN and ±Inf, which JSON does not have, as words that `float()` and MLflow's own API read."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
