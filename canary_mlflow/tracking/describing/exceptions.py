"""The exception that ended a run: its type, the place that raised it, and whether the code may be to blame."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping

from canary_mlflow.errors import CanaryError
from canary_mlflow.tags import EXCEPTION, EXCEPTION_OUTSIDE, EXCEPTION_PLACE
from canary_mlflow.tracking.describing.failures import STORES, module_path, taken_by_others
from gates.model.records import Raised

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
