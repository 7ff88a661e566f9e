"""The only way to open an untrusted file: it must be a regular file, and is read only up to a limit; the errors
for more."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, cast

from canary_mlflow.errors import UsageError

MAX_ROWS = 5_000_000
"""More rows than any run has optimizer steps; reading more would only fill the memory."""
MAX_BYTES = 4 << 30
"""Unpacked bytes of a history that is read row by row."""
MAX_WHOLE = 128 << 20
"""Bytes of a history that is one JSON value: parsed, it takes some ten times that."""
MAX_LINE = 4 << 20
"""Bytes: a row of 20,000 columns has half of that."""
MAX_LOG_LINE = 2000
"""Characters of a line that a training printed; a longer one is passed over."""
MAX_COLUMNS = 20_000
MAX_DOCUMENT = 1 << 20
"""Bytes of what is not a history: a policy, a configuration, a key, the JSON beside a history."""
MAX_VERDICT = 32 << 20
"""Bytes of a verdict.json, which names each run, and of the event that GitHub starts a job with."""
MAX_DEPTH = 50
MAX_NODES = 100_000
"""Values in a YAML text."""
MAX_EVENT = 64 << 20
"""Bytes of one of TensorBoard's events: a scalar has a hundred, a picture a few million."""
MAX_RESTARTS = 20
"""A run is resumed a few times; a file that goes back more often is not in the order of training."""
MOST_TWICE = 0.1
"""Of the steps: a row for each rank, split or micro-step is not a history of optimizer steps."""
SHOWN = 8  # columns named in an error

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class TooMuch(ValueError):
    """A file is larger than is read of its kind; the message says what was found and expected."""


def open_regular(path: Path, within: Path | None = None) -> io.BufferedReader:
    """The file, to read bytes from. Raises OSError, also for a pipe, a device or a socket: one that nobody writes to
    would be waited for without end, and some never end. `within`: also for a link that leads out of this folder."""
    if within is not None and not path.resolve().is_relative_to(within.resolve()):
        raise OSError(errno.ELOOP, "is a link to outside", str(path))
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is opened at once, not waited for
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            kind = next((name for is_one, name in _KINDS if is_one(mode)), "something else")
            raise OSError(errno.EINVAL, f"is {kind}, not a regular file", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_bytes(path: Path, most: int = MAX_DOCUMENT, within: Path | None = None) -> bytes:
    """A whole small file: a key, a policy, a configuration. Raises OSError, and TooMuch beyond `most` bytes."""
    with open_regular(path, within) as raw:
        found = raw.read(most + 1)
    if len(found) > most:
        raise TooMuch(f"holds more than {size(most)}; expected at most that")
    return found


def size(number: int) -> str:
    """`64 MiB`."""
    for unit, word in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= unit:
            return f"{number // unit} {word}"
    return f"{number} bytes"


class Bounded(io.RawIOBase):
    """What a stream holds, unpacked, as long as it is not too much: in all, or in one line. Raises TooMuch.

    The first line of JSON may be as long as a whole file: trainer_state.json may stand in one.
    """

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.most, self.longest = MAX_BYTES, MAX_LINE
        self._source = source
        self._read = 0
        self._in_line = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes."""
        number = int(self._source.readinto(buffer))
        part = bytes(memoryview(buffer)[:number])
        if not self._read and part.lstrip()[:1] in (b"{", b"["):
            self.longest = MAX_WHOLE
        self._read += number
        last = max(part.rfind(b"\n"), part.rfind(b"\r"))
        if last < 0:
            self._in_line += number
        elif self._in_line + last > self.longest:
            self._in_line += last
        else:
            self._in_line, self.longest = number - 1 - last, MAX_LINE
        if self._in_line > self.longest:
            raise TooMuch(f"has a line of more than {size(self.longest)}; expected one row per line")
        if self._read > self.most:
            raise TooMuch(f"holds more than {size(self.most)}; expected at most that")
        return number

    def take_whole(self) -> None:
        """From now on it may be one line, and less in all: it is read as one value."""
        self.most = self.longest = MAX_WHOLE

    def buffered(self) -> BinaryIO:
        """For readers that want a buffer."""
        return cast(BinaryIO, io.BufferedReader(self, 1 << 16))


def too_many_rows(path: Path) -> UsageError:
    """The error for a file with more than MAX_ROWS rows."""
    return UsageError(
        f"{path}: more than {MAX_ROWS:,} rows; expected at most one row per optimizer step of one run; "
        "keep every tenth row, or split it into one file per run"
    )


def too_many_columns(path: Path) -> UsageError:
    """The error for a file with more than MAX_COLUMNS columns."""
    return UsageError(
        f"{path}: more than {MAX_COLUMNS:,} columns; expected one per metric; keep those of the training itself"
    )
