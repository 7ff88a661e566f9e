"""How a run broke off: one of the words that the gate knows, a sentence, and what the exception says about the code."""

from __future__ import annotations

import errno
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

from canary_mlflow.errors import CanaryError, one_line
from canary_mlflow.gates.model.records import Raised as Raised  # for training/, which may not import gates
from canary_mlflow.tags import EXCEPTION, EXCEPTION_OUTSIDE, EXCEPTION_PLACE

UNSTABLE = ("instability", "oom", "timeout")
"""Failures that tell something about the code that ran, and not about the machine."""

# Raised by sampling from logits that hold NaN or Inf (torch.multinomial).
POISONED = "probability tensor contains"


def classify(error: BaseException | None, nonfinite_steps: int = 0) -> tuple[str, str]:
    """(failure, sentence). failure: instability | oom | timeout | interrupted | error.

    A crash after non-finite values is called instability: the numbers broke before the program did.
    """
    if error is None:
        return "error", "training ended before its last step, and why is not known"
    name = type(error).__name__
    sentence = f"{name}: {one_line(error)}" if str(error) else name
    if name == "OutOfMemoryError" or isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return "error" if taken_by_others(str(error)) else "oom", sentence
    if isinstance(error, TimeoutError) and not waits_outside(error):
        return "timeout", sentence
    if not isinstance(error, Exception):  # KeyboardInterrupt, SystemExit, and what signal handlers raise
        return "interrupted", sentence
    if name == "InstabilityError" or isinstance(error, FloatingPointError) or POISONED in str(error):
        return "instability", sentence
    return ("instability" if nonfinite_steps else "error"), sentence


# Packages that talk to stores and networks. Their exceptions tell about these, whoever called them.
STORES = frozenset({
    "aiohttp", "alembic", "azure", "boto3", "botocore", "filelock", "fsspec", "gcsfs", "httpcore", "httpx",
    "huggingface_hub", "mlflow", "psycopg2", "pymysql", "requests", "s3fs", "sqlalchemy", "sqlite3", "urllib3", "wandb",
})  # fmt: skip
_SIZE = r"([\d.]+) ([KMGT]?i?B|bytes)"
_UNITS = {"bytes": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def taken_by_others(message: str) -> bool:
    """Whether torch says that it would have had enough memory without the other processes on the same GPU."""
    wanted = re.search(rf"Tried to allocate {_SIZE}", message)
    free = re.search(rf"of which {_SIZE} is free", message)
    others = sum(_bytes(*found) for found in re.findall(rf"Process \d+ has {_SIZE} memory in use", message))
    return bool(wanted and free and others and _bytes(*wanted.groups()) <= _bytes(*free.groups()) + others)


def _bytes(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit]


def is_full(error: BaseException) -> bool:
    """Whether a disk was full, for which the code that ran is not to blame, whoever raised the error."""
    found: BaseException | None = error
    while found is not None:
        full = isinstance(found, OSError) and found.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or any(words in str(found) for words in ("No space left on device", "disk is full")):
            return True
        found = found.__cause__ or found.__context__
    return False


def waits_outside(error: BaseException) -> bool:
    """Whether a timeout comes from Python's own library or one for stores, which wait for sockets and locks."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and module_path(frames[-1][0].f_code.co_filename).partition("/")[0] in {"", *STORES}


def module_path(file: str) -> str:
    """The file's path relative to where Python imports it from, the same on every machine; '' for Python's own library
    and for code without a file."""
    path = Path(file)
    if file.startswith("<"):
        return ""
    roots = [Path(entry).resolve() for entry in (*sys.path, ".") if entry]
    holding = [root for root in roots if path.resolve().is_relative_to(root)]
    own = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    if not holding:
        return path.name
    root = max(holding, key=lambda found: len(found.parts))
    return "" if root in own else path.resolve().relative_to(root).as_posix()


RAISED_TAGS = (EXCEPTION, EXCEPTION_PLACE, EXCEPTION_OUTSIDE)
"""A run's tags for the fields of `Raised`, in their order."""


def raised(error: BaseException | None) -> Raised | None:
    """What an exception tells about the code that ran; None for a signal, Ctrl-C or no exception."""
    if not isinstance(error, Exception):
        return None
    return Raised(kind=type(error).__name__, place=_place(error), outside=_outside(error))


def raised_tags(found: Raised | None) -> dict[str, str]:
    """A run's tags for the exception; {} for None."""
    return {} if found is None else dict(zip(RAISED_TAGS, (found.kind, found.place, found.outside), strict=True))


def raised_from(tags: Mapping[str, str]) -> Raised | None:
    """The inverse of `raised_tags`; None if the tags hold no exception."""
    kind, place, outside = (tags.get(key, "") for key in RAISED_TAGS)
    return Raised(kind=kind, place=place, outside=outside) if kind else None


def _outside(error: Exception) -> str:
    """Why an exception tells nothing about the code; '' if it may."""
    for each in _chain(error):
        name, package = type(each).__name__, type(each).__module__.partition(".")[0]
        if isinstance(each, OSError):
            return f"{name} is an OSError, which is about files and networks"
        if isinstance(each, CanaryError):
            return f"{name} is about the recording"
        if (found := package if package in STORES else _place(each).partition("/")[0]) in STORES:
            return f"{name} was raised in {found}, which is about a store or a network"
        if type(each).__module__.startswith("torch") and name.startswith("Dist"):
            return f"{name} is about the network between ranks"
        if "is killed by signal" in str(each):
            return f"{name} is about a process that was killed"
        if taken_by_others(str(each)):
            return f"{name}: other processes had taken the memory"
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and those that led to it."""
    seen: set[int] = set()
    while error and id(error) not in seen:
        seen.add(id(error))
        yield error
        following = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if following is None:
            return
        error = following


def _place(error: BaseException) -> str:
    """The innermost frame in a package or in the user's code, as `trl/trainer/utils.py:1638 in apply`."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if name := module_path(frame.f_code.co_filename):
            return f"{name}:{line} in {frame.f_code.co_name}"
    return ""
