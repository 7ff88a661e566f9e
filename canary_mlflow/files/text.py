"""A file as text: plain or gzip, UTF-8 or UTF-16, or one line on why it is neither."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TextIO, cast

from canary_mlflow.errors import UsageError
from canary_mlflow.files.numbers import json_value
from canary_mlflow.files.ranks import other_ranks, rank_of
from canary_mlflow.files.source import MAX_ROWS, Bounded, TooMuch, open_regular, too_many_rows
from canary_mlflow.shown import uncoloured

_GZIP = b"\x1f\x8b"
CHUNK = 1 << 20  # bytes that are looked at in one call
_LARGE = 64 << 20  # bytes from which rows are counted first


class NotUtf8(UsageError):
    """The file is in another encoding."""


@contextmanager
def opened(path: Path, errors: str = "strict", what: str = "the history of one run") -> Iterator[TextIO]:
    """The file's text, without a byte order mark. Raises UsageError for what cannot be read, while reading too.
    `errors`: what becomes of other encodings' bytes, as for `open`. `what`: is expected."""
    try:
        with open_regular(path) as raw:
            packed = raw.peek(2)[:2] == _GZIP
            source = Bounded(gzip.GzipFile(fileobj=raw) if packed else raw).buffered()
            head = source.peek(64)[:64]  # type: ignore[attr-defined]
            encoding = _encoding(path, head, what)
            with io.TextIOWrapper(cast(IO[bytes], source), encoding=encoding, errors=errors, newline="") as text:
                yield text
    except TooMuch as error:
        raise UsageError(f"{path}: {error}; is it {what}?") from None
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; expected a training history; check the path") from None
    except IsADirectoryError:
        raise UsageError(
            f"{path}: is a folder; expected a file, or TensorBoard's event files in it; name the history"
        ) from None
    except UnicodeError as error:
        raise NotUtf8(f"{path}: is not UTF-8 text ({error}); expected JSON or CSV; convert it") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: the gzip data is cut or damaged ({error}); expected a whole file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error}); expected a readable file") from None


class HistoryFile:
    """A file that may be a history, as its readers see it. `errors`: as for `opened`. `numbered`: where only an epoch
    tells the step, the rows are counted instead."""

    def __init__(self, path: Path, errors: str = "strict", *, numbered: bool = False) -> None:
        self.path, self.errors, self.numbered = path, errors, numbered
        self.refused: UsageError | None = None  # why a reader that was nearest to it did not read it
        self.notes: list[str] = [] if errors == "strict" else ["is not UTF-8; its other characters are left out"]

    @contextmanager
    def opened(self) -> Iterator[tuple[str, TextIO]]:
        """The first line that is not blank, and the text behind it."""
        with opened(self.path, self.errors) as text:
            yield next((line for line in text if not line.isspace()), ""), text

    @cached_property
    def first(self) -> str:
        """The first line that is not blank."""
        with self.opened() as (line, text):
            if (text.encoding or "").startswith("utf-16"):  # as a shell of Windows writes it
                self.notes.append("is UTF-16; read as such")
            return line

    @cached_property
    def alone(self) -> Any:
        """The value of that line if it is JSON of its own."""
        try:
            return json_value(self.first)
        except (ValueError, RecursionError):
            return None

    @cached_property
    def _others(self) -> frozenset[str]:
        """The ranks whose lines are left out."""
        with opened(self.path, self.errors) as text:
            others, note = other_ranks(map(uncoloured, text))
        self.notes += note
        return others

    def lines(self) -> Iterator[str]:
        """The lines, without a terminal's colours; of several ranks that print the same, those of one."""
        others = self._others
        with opened(self.path, self.errors) as text:
            yield from (line for line in map(uncoloured, text) if not others or rank_of(line) not in others)


@contextmanager
def text_lines(path: Path) -> Iterator[TextIO]:
    """The lines of a file that is not a history; what is not UTF-8 in it is replaced. Raises UsageError as `opened`."""
    try:
        with open_regular(path) as raw:
            source = cast(IO[bytes], Bounded(raw).buffered())
            with io.TextIOWrapper(source, encoding="utf-8", errors="replace") as text:
                yield text
    except TooMuch as error:
        raise UsageError(f"{path}: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error}); expected a readable file") from None


def rest_of(text: TextIO) -> str:
    """Everything that is left of an open text, which must be one value."""
    raw = text.buffer.raw  # type: ignore[attr-defined]  # what `opened` has put there
    raw.take_whole()
    return text.read()


def refuse_huge(path: Path, mark: bytes) -> None:
    """Refuse what would fill the memory before it is parsed: `mark` stands once in each row.

    The rows of a packed file are counted while they are read.
    """
    if path.stat().st_size > _LARGE and _occurrences(path, mark) > MAX_ROWS + 1:
        raise too_many_rows(path)


def _occurrences(path: Path, mark: bytes) -> int:
    found, tail = 0, b""
    with open_regular(path) as raw:
        while chunk := raw.read(CHUNK):
            found += (tail + chunk).count(mark)
            tail = chunk[len(chunk) - len(mark) + 1 :] if len(mark) > 1 else b""
    return found


def _encoding(path: Path, head: bytes, what: str) -> str:
    if not head.strip():
        raise UsageError(f"{path}: is empty; expected {what}; nothing to judge")
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" in head:
        raise UsageError(f"{path}: holds zero bytes; expected UTF-8 text, JSON or CSV; convert it (UTF-16? binary?)")
    return "utf-8-sig"
