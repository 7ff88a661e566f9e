"""A run's outbox: what its store does not have yet, in a file that outlives the process."""

from __future__ import annotations

import json
import struct
import threading
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import parse_json
from canary_mlflow.files.source import MAX_LINE, open_regular
from canary_mlflow.tracking.delivery.lines import LineFile, to_line

UNDELIVERED = "undelivered.jsonl"
IN_MEMORY = 50_000  # values, some 10 MB, that wait for room on a full disk: 2000 steps of 24 metrics
FORMAT = "canary-undelivered-1"

Item = Mapping[str, Any]
"""A row `{timestamp, step, metrics}`, `{tags}`, an artifact `{artifact, content}` or `{file, remove}`, or the run's end
`{status, end_time}`. A row keeps its timestamp (ms), so that a store recognises one that is sent twice."""
PACKED = {"timestamp", "step", "names", "packed"}
"""A row as it stands in the file: numbers as bytes, which takes a tenth of the time that their digits do. The thread
that writes has the interpreter meanwhile. Files of before have the row itself."""
KINDS = [
    {"timestamp", "step", "metrics"},
    {"tags"},
    {"artifact", "content"},
    {"file", "remove"},
    {"status", "end_time"},
]


class StillSent(UsageError):
    """A run's outbox that its own process, or another `canary deliver`, is about to send."""


class _Line(NamedTuple):
    text: bytes
    values: int


class Outbox:
    """The items of one run that wait, oldest first.

    Each is in the file `path` when `put` returns; up to `most` values for which the disk has no room wait in memory.
    `take` leaves what it returns in the outbox until `done`, so that nothing is gone before the store has it. The file
    begins with a line that names run and store, and is removed once all of it has arrived. No other process can deliver
    it before `close`.
    """

    def __init__(self, path: Path, *, run_id: str, store: str, most: int = IN_MEMORY) -> None:
        self.path = path
        self.run_id = run_id
        self.store = store  # without a password
        self.most = most
        self.unreadable = 0  # lines of the file
        self._lock = threading.Lock()
        self._file = LineFile(path, alone=True)
        self._done = 0  # bytes of the file that have arrived
        self._memory: deque[_Line] = deque()
        self._in_memory = self._in_file = 0  # values
        self._taken: list[tuple[bytes, Item | None]] = []
        self._made = [folder for folder in (path.parent, path.parent.parent) if not folder.exists()]
        if path.exists():  # the run was killed, and is being resumed
            with suppress(OSError):  # the next `put` tries again
                self._open()

    @classmethod
    def of_file(cls, path: Path) -> Outbox:
        """The outbox that a run left behind. Raises UsageError for another kind of file, StillSent while the run goes
        on."""
        try:
            with open_regular(path) as file:
                head = parse_json(file.readline(MAX_LINE))
            if head["format"] != FORMAT:
                raise ValueError("another format")
            found = cls(path, run_id=str(head["run_id"]), store=str(head["store"]))
            if not found._file.is_open:
                found._open()
        except BlockingIOError as error:
            raise StillSent(
                f"{path}: a process still sends it; expected a file that a run left behind; wait for the run's end"
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = getattr(error, "strerror", None) or "its first line names no run"
            raise UsageError(
                f"{path}: {why}; expected a file undelivered.jsonl that a run left behind; copy its path from what "
                "the run said at its end"
            ) from error
        return found

    @property
    def values(self) -> int:
        """How many values of metrics wait."""
        return self._in_memory + self._in_file

    def put(self, *items: Item) -> tuple[int, OSError | None]:
        """Add items, all at once: each write lets another thread have the interpreter. Returns how many values neither
        disk nor memory took, which are lost, and what the disk said."""
        lines = [_Line(line_of(item), values_in(item)) for item in items]
        with self._lock:
            self._memory += lines
            self._in_memory += sum(line.values for line in lines)
            try:
                self._to_disk()
            except OSError as error:
                lost = 0
                for line in reversed(lines):
                    if self._in_memory > self.most and line.values:
                        self._memory.pop()
                        self._in_memory -= line.values
                        lost += line.values
                return lost, error
        return 0, None

    def take(self, most: int) -> list[Item]:
        """The oldest items: rows of at most `most` values in all, but at least one, or one item of another kind; none
        if nothing waits."""
        with self._lock:
            taken: list[Item] = []
            self._taken, count = [], 0
            for text in chain(self._file.lines(self._done), [line.text for line in self._memory]):
                item = item_of(text)
                count += values_in(item)
                if taken and item is not None and (count > most or "metrics" not in item):
                    break
                self._taken.append((text, item))
                if item is not None:
                    taken.append(item)
                    if "metrics" not in item:
                        break
            if not taken:
                self._drop_taken()
            return taken

    def done(self) -> None:
        """Drop what `take` returned: it has arrived, or is given up."""
        with self._lock:
            self._drop_taken()

    def close(self) -> tuple[bool, int, OSError | None]:
        """Leave the file to whoever delivers it. Returns whether there is one, how many values the disk did not take,
        which are given up, and why."""
        with self._lock:
            error, self._taken = None, []
            try:
                self._to_disk()
            except OSError as found:
                error = found
            lost, self._in_memory = self._in_memory, 0
            self._memory.clear()
            left = self._file.is_open
            self._file.close()
            return left, lost, error

    def _to_disk(self) -> None:
        """Move what is in memory to the file, as far as there is room. Raises OSError."""
        if self._memory and not self._file.is_open:
            self._open()
        try:
            self._write(len(self._memory))
        except OSError:
            while self._memory:
                self._write(1)

    def _write(self, count: int) -> None:
        lines = list(islice(self._memory, count))
        if lines:
            self._file.write(b"".join(line.text for line in lines))
        for line in lines:
            self._memory.popleft()
            self._in_memory, self._in_file = self._in_memory - line.values, self._in_file + line.values

    def _open(self) -> None:
        """Make the file, or continue with the one that is there, behind its first line. Raises OSError."""
        self._file.open()
        try:
            if not self._file.size:
                head = to_line({"format": FORMAT, "run_id": self.run_id, "store": self.store})
                self._file.append(head)
        except OSError:
            self._remove()
            raise
        lines = self._file.lines(0)
        self._done = len(next(lines))
        self._in_file = sum(values_in(item_of(line)) for line in lines)

    def _drop_taken(self) -> None:
        for text, item in self._taken:
            self.unreadable += item is None
            if self._done < self._file.size:
                self._done += len(text)
                self._in_file -= values_in(item)
            else:
                self._memory.popleft()
                self._in_memory -= values_in(item)
        self._taken = []
        if self._file.is_open and self._done >= self._file.size:
            self._remove()

    def _remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._file.close()
        self._done = self._in_file = self._file.size = 0
        for folder in self._made:
            with suppress(OSError):  # something else is in it
                folder.rmdir()


def line_of(item: Item) -> bytes:
    """The line of an item."""
    if "metrics" not in item:
        return to_line(item).encode() + b"\n"
    values = item["metrics"].values()
    packed = b64encode(struct.pack(f"<{len(values)}d", *values)).decode()
    head = f'{{"timestamp":{item["timestamp"]},"step":{item["step"]}'
    return f'{head},"names":{_names(tuple(item["metrics"]))},"packed":"{packed}"}}\n'.encode()


@lru_cache(maxsize=16)
def _names(names: tuple[str, ...]) -> str:
    """As JSON; most rows have the names of the one before."""
    return json.dumps(names)


def item_of(line: bytes) -> Item | None:
    """The item of a line; None for one that was cut short when its process ended."""
    try:
        found: dict[str, Any] = parse_json(line)
        if found.keys() == PACKED:
            packed = b64decode(found.pop("packed"), validate=True)
            values = struct.unpack(f"<{len(packed) // 8}d", packed)
            found["metrics"] = dict(zip(found.pop("names"), values, strict=True))
        elif found.keys() not in KINDS:
            return None
        elif "metrics" in found:
            found["metrics"] = {str(name): float(value) for name, value in found["metrics"].items()}
    except (ValueError, TypeError, AttributeError, struct.error):
        return None
    return found


def values_in(item: Item | None) -> int:
    """How many values of metrics an item holds."""
    return 0 if item is None else len(item.get("metrics", ()))
