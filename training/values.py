"""Checks of single values, each with a one-line refusal."""

from __future__ import annotations

import math

from canary_mlflow.errors import UsageError


def positive(key: str, value: float) -> None:
    """Raise UsageError unless the value is a number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{key} is {value}; expected more than 0")


def at_least(key: str, value: float, least: float) -> None:
    """Raise UsageError unless the value is a number, `least` or more."""
    if not (math.isfinite(value) and value >= least):
        raise UsageError(f"{key} is {value}; expected at least {least}")


def share(key: str, value: float) -> None:
    """Raise UsageError unless the value lies between 0 and 1."""
    if not 0 <= value <= 1:
        raise UsageError(f"{key} is {value}; expected 0 to 1")


def one_of(key: str, found: str, valid: tuple[str, ...]) -> None:
    """Raise UsageError unless the word is one of the valid ones."""
    if found not in valid:
        raise UsageError(f"{key} is {found!r}; expected one of {', '.join(valid)}")


def divides(key: str, value: int, other: str, whole: int) -> None:
    """Raise UsageError unless the value is a divisor of the other one."""
    if whole % value:
        raise UsageError(f"{key} is {value}; expected a divisor of {other} ({whole})")
