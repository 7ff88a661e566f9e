"""Answers that depend on installed files alone, kept from one process to the next while those files stay the same."""

from __future__ import annotations

import functools
import hashlib
import marshal
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from canary_mlflow.tracking.stores.places import cache_dir

RECORDS = ("dist-info", "egg-info")  # what importlib.metadata reads


def remembered(name: str, state: Iterable[str], make: Callable[[], Any]) -> Any:
    """What `make` answers, or answered when the `state` was the same. `name`: tells answers of an environment apart.

    An answer consists of Python's own plain types. A cache that cannot be read or written costs time, nothing else.
    """
    file = cache_dir() / "installed" / _digest([sys.prefix, name]).hex()[:16]
    digest = _digest([sys.version, *state])
    with suppress(OSError, EOFError, ValueError, TypeError):
        kept = file.read_bytes()
        if kept.startswith(digest):
            return marshal.loads(kept[len(digest) :])
    made = make()
    with suppress(OSError, ValueError):
        _write(file, digest + marshal.dumps(made))
    return made


def _digest(words: Iterable[str]) -> bytes:
    return hashlib.sha256("\n".join(words).encode(errors="surrogateescape")).digest()


def _write(file: Path, content: bytes) -> None:
    """Whole or not at all: the runs of a session may write it at the same moment."""
    file.parent.mkdir(parents=True, exist_ok=True)
    number, draft = tempfile.mkstemp(dir=file.parent)
    try:
        with open(number, "wb") as out:
            out.write(content)
        os.replace(draft, file)
    finally:
        Path(draft).unlink(missing_ok=True)


def records_of_packages() -> Iterator[str]:
    """The records of installed packages, by name and time: installing, updating or removing one changes these. The
    folders' own times would not do: that of the working directory changes whenever a store writes there."""
    for folder in sys.path:
        if os.path.isfile(folder):  # a zip, with whatever is in it
            yield state_of_file(folder)
            continue
        with suppress(OSError), os.scandir(folder or ".") as entries:
            found = [entry for entry in entries if entry.name.lower().endswith(RECORDS)]
            yield from sorted(f"{entry.path} {entry.stat().st_mtime_ns}" for entry in found)


@functools.cache
def state_of_files(folder: str) -> str:
    """A digest of the names, times and sizes of all files below a folder, when it was first asked for."""
    return _digest(sorted(_files(folder))).hex()


def state_of_file(file: str) -> str:
    """Name, time and size of a file."""
    found = os.stat(file)
    return f"{file} {found.st_mtime_ns} {found.st_size}"


def _files(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from () if entry.name == "__pycache__" else _files(entry.path)
            else:
                yield state_of_file(entry.path)
