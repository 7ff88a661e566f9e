"""What can go wrong, and the exit code with which each kind ends a command.

    CanaryError                 4
    ├── UsageError              2
    │   ├── NoSuchModel         2
    │   ├── NoSuchVersion       2
    │   └── NoSuchRun           2
    ├── StoreError              4
    ├── BaselineMoved           4
    ├── BlindProbe              4
    ├── Refused                 4
    ├── NoSource                4
    ├── BrokeOff                4
    └── CannotWrite             4

Every message is one line: what was found; what was expected; what to do. 0, 1 and 3 are verdicts, not errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


_FOR_DEVELOPERS = re.compile(
    r" ?\(Background on this error at: \S+\)|\(raised as a result of Query-invoked autoflush;[^)]*\) | \[SQL: .*"
)


class CanaryError(Exception):
    """An error that one line explains; commands print the line and exit with `exit_code`."""

    exit_code: int = 4

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in a notebook: the line, without the frames that led to it."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(CanaryError):
    """Wrong use or configuration: a name, key, value or file that does not exist or makes no sense."""

    exit_code = 2


class NoSuchModel(UsageError):
    """A registered model was named that is not in the registry."""


class NoSuchVersion(UsageError):
    """A version was named that the registered model does not have."""


class NoSuchRun(UsageError):
    """A run was named that is not in the tracking store."""


class StoreError(CanaryError):
    """The tracking store cannot be reached, written, or used with this MLflow."""


class BaselineMoved(CanaryError):
    """The champion changed while a version was judged against the previous one."""


class BlindProbe(CanaryError):
    """A probe did not see what it was shown, so the run that it should watch would prove nothing."""


class Refused(CanaryError):
    """The guard of the registry said no."""


class NoSource(CanaryError):
    """The code or the packages that runs were made with are not available here."""


class BrokeOff(CanaryError):
    """A run broke off with an exception that it recorded; the gate decides what that means."""


class CannotWrite(CanaryError):
    """A requested file cannot be written at the requested place."""


def plainly(function: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
    """Decorate a function that scripts call: a CanaryError's traceback ends at the script's own line, without our
    frames and the library errors behind it, which stay in its `__context__`. Any other exception passes untouched."""

    @wraps(function)
    def called(*given: _Given.args, **named: _Given.kwargs) -> _Found:
        try:
            return function(*given, **named)
        except CanaryError as error:
            raise error.with_traceback(None) from None
        except FileNotFoundError as error:
            if gone := folder_gone(error):
                raise gone from None
            raise

    return called


def folder_gone(error: Exception) -> CanaryError | None:
    """What to say instead if the working folder was deleted, in which every relative path is looked for."""
    if not isinstance(error, FileNotFoundError):
        return None
    try:
        os.getcwd()
    except FileNotFoundError:
        return CanaryError(
            "the working folder: it was deleted; expected one that is there; change into one, and try again"
        )
    return None


def one_line(error: BaseException, limit: int = 300) -> str:
    """The error's own words without line breaks, at most `limit` characters; its type when it has none. Without the
    statement and the advice for developers that SQLAlchemy, and CUDA from the second line on, put around them."""
    said = str(error)
    said = said.split("\n")[0] if said.startswith("CUDA error:") else said
    words = _FOR_DEVELOPERS.sub("", " ".join(said.split()))
    return (words or type(error).__name__)[:limit]
