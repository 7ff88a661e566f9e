"""How a run broke off: an exception as one of the words that the gate knows, and one sentence."""

from __future__ import annotations

import errno
import re
import sys
import sysconfig
import traceback
from pathlib import Path

from canary_mlflow.errors import one_line

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
