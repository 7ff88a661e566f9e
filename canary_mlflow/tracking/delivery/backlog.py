"""What waits for the store, oldest first: a little in memory, the rest in a file that outlives the process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import parse_json
from canary_mlflow.files.limits import MAX_LINE
from canary_mlflow.files.source import open_regular
from canary_mlflow.tracking.delivery.items import Item, Sample, from_dict, values_in
from canary_mlflow.tracking.delivery.lines import LineFile, copy_lines, to_line

IN_MEMORY = 50_000  # values, some 10 MB: 2000 steps of 24 metrics
FORMAT = "canary-undelivered-1"


class Backlog:
    """A queue of one run's items that never holds more than `most` values in memory; the rest goes to the file `path`.

    The training thread puts rows, the sending thread takes them. `take` leaves what it returns in the queue until
    `done`, so that nothing is gone before the store has it. The file begins with a line that names run and store; it is
    removed once it has been read to its end.
    """

    def __init__(self, path: Path, *, run_id: str, store: str, most: int = IN_MEMORY) -> None:
        self.path = path
        self.run_id = run_id
        self.store = store  # without a password
        self.most = most
        self.unreadable = 0  # lines of the file
        self._lock = threading.Lock()
        self._memory: deque[Item] = deque()
        self._in_memory = 0  # values
        self._in_file = 0  # values in the file that are not read yet
        self._file: LineFile | None = None
        self._read = 0  # bytes of the file that are read
        self._taken = 0  # items at the head of the memory that `take` returned
        if path.exists():  # the run was killed, and is being resumed
            self._continue_file()
            self._in_file = self._count()

    @classmethod
    def of_file(cls, path: Path) -> Backlog:
        """The backlog that a run left behind. Raises UsageError for another kind of file."""
        try:
            with open_regular(path) as file:
                head = parse_json(file.readline(MAX_LINE))
            if head["format"] != FORMAT:
                raise ValueError("another format")
            return cls(path, run_id=str(head["run_id"]), store=str(head["store"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = getattr(error, "strerror", None) or "its first line names no run"
            raise UsageError(
                f"{path}: {why}; expected a file undelivered.jsonl that a run left behind; copy its path from what "
                "the run said at its end"
            ) from error

    @property
    def values(self) -> int:
        """How many values of metrics wait."""
        return self._in_memory + self._in_file

    def put(self, item: Item) -> None:
        """Queue an item. Raises OSError when memory is full and the disk does not take the item, which is then lost."""
        count = values_in(item)
        with self._lock:
            if self._file is None and self._in_memory + count <= self.most:
                self._memory.append(item)
                self._in_memory += count
                return
            if self._file is None:
                self._file = self._begin(self.path)
            self._file.append(to_line(item.to_dict()))
            self._in_file += count

    def take(self, most: int) -> Sequence[Item]:
        """The oldest items: samples of at most `most` values in all, but at least one item; none if empty."""
        with self._lock:
            if not self._memory:
                self._refill(most)
            taken: list[Item] = []
            count = 0
            for item in self._memory:
                count += values_in(item)
                if taken and (count > most or not isinstance(item, Sample)):
                    break
                taken.append(item)
                if not isinstance(item, Sample):
                    break
            self._taken = len(taken)
            return taken

    def done(self) -> None:
        """Drop what `take` returned: it has arrived, or is given up."""
        with self._lock:
            for _ in range(self._taken):
                self._in_memory -= values_in(self._memory.popleft())
            self._taken = 0
            if not self._memory and self._file is not None and self._read >= self._file.size:
                self._drop()

    def to_disk(self) -> Path | None:
        """Put everything that waits into the file and return its path; None if nothing waits. Raises OSError.

        After an error, the file's content is still in the file and the memory's still in memory.
        """
        with self._lock:
            self._taken = 0
            if not self._memory:
                return None if self._file is None else self.path
            new = self.path.with_suffix(".new")
            try:
                file = self._begin(new)
                for item in self._memory:
                    file.append(to_line(item.to_dict()))
                if self._file is not None:
                    copy_lines(self.path, self._read, file)
                file.close()
                new.replace(self.path)
            except OSError:
                new.unlink(missing_ok=True)
                raise
            self._memory.clear()
            self._in_file, self._in_memory = self._in_file + self._in_memory, 0
            self._continue_file()
            return self.path

    def forget(self) -> int:
        """Give up what is in memory, and return how many values those were."""
        with self._lock:
            lost, self._in_memory, self._taken = self._in_memory, 0, 0
            self._memory.clear()
            return lost

    def _begin(self, path: Path) -> LineFile:
        file = LineFile(path)
        path.unlink(missing_ok=True)
        try:
            file.append(to_line({"format": FORMAT, "run_id": self.run_id, "store": self.store}))
        except OSError:
            file.close()
            path.unlink(missing_ok=True)
            raise
        if path == self.path:
            self._read = file.size
        return file

    def _continue_file(self) -> None:
        """Continue with an existing file, behind its first line."""
        if self._file is not None:
            self._file.close()
        self._file = LineFile(self.path)
        with self.path.open("rb") as file:
            self._read = len(file.readline())
            self._file.size = file.seek(0, 2)

    def _count(self) -> int:
        with self.path.open("rb") as file:
            file.seek(self._read)
            return sum(values_in(item) for line in file if (item := _item(line)) is not None)

    def _refill(self, most: int) -> None:
        """Read the file's oldest items into memory, about `most` values of them."""
        if self._file is None:
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            while self._in_memory < most and self._read < self._file.size:
                line = file.readline()
                self._read += len(line)
                item = _item(line)
                if item is None:
                    self.unreadable += 1
                    continue
                self._memory.append(item)
                self._in_memory += values_in(item)
        self._in_file = max(0, self._in_file - self._in_memory)
        if not self._memory:
            self._drop()

    def _drop(self) -> None:
        if self._file is not None:
            self._file.close()
            self.path.unlink(missing_ok=True)
        self._file = None
        self._in_file = self._read = 0


def _item(line: bytes) -> Item | None:
    """The item of a line; None for a line that was cut short when its process ended."""
    try:
        return from_dict(parse_json(line))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
