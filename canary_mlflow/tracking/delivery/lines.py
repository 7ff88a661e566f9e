"""Files of one JSON object per line, written while training goes on."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class LineFile:
    """Appends lines, each handed to the operating system at once: what a killed process wrote is kept.

    A line for which the disk has no room is not left half written. No file is made before the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0  # bytes of whole lines
        self._descriptor: int | None = None

    def append(self, line: str) -> None:
        """Add a line. Raises OSError when it cannot be kept."""
        if self._descriptor is None:
            self._open()
        assert self._descriptor is not None
        content = line.encode() + b"\n"
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(content)

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # The store's address and a run's configuration are nobody else's business.
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.size = os.fstat(self._descriptor).st_size
        if self.size and not self._ends_with_a_line():  # the last line was cut short when its process was killed
            self.size += os.write(self._descriptor, b"\n")

    def _ends_with_a_line(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() == b"\n"


def copy_lines(path: Path, start: int, to: LineFile) -> None:
    """Append a file's lines from the byte `start` on. Raises OSError."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            to.append(line.decode(errors="replace").rstrip("\n"))


def to_line(content: Mapping[str, Any]) -> str:
    """A JSON object on one line; its floats must be finite, see `to_json`."""
    return json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)


def to_json(value: float) -> float | str:
    """The value for JSON; NaN and ±Inf, which JSON does not have, as words that `float()` and MLflow's own API read."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
