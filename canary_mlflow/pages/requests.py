"""What a request for a page asks, who may see what, and how JSON is answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import UsageError

if TYPE_CHECKING:
    from flask import Response

READERS = "CANARY_READERS"


@dataclass(frozen=True, kw_only=True)
class Readers:
    """Who may see what; without users, everybody may see everything."""

    model: Callable[[str], bool] = lambda name: True
    experiment: Callable[[str], bool] = lambda number: True


def readers() -> Readers:
    """The current app's `Readers`."""
    from flask import current_app

    found: Readers = current_app.config[READERS]
    return found


def argument(name: str, most: int = 256) -> str:
    """A query parameter. Raises UsageError."""
    from flask import request

    found = request.args.get(name, "")
    if not found or len(found) > most or "\x00" in found:
        raise UsageError(f"{name}: {'missing' if not found else 'no such name'}; expected ?{name}=…; see the overview")
    return found


def whole_number(name: str) -> int | None:
    """An optional query parameter; None if it is missing. Raises UsageError."""
    from flask import request

    text = request.args.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise UsageError(f"{name}: no whole number; expected one, or leave it out")
    return int(text)


def as_answer(value: Mapping[str, Any]) -> Response:
    """A JSON response without NaN and without blanks."""
    from flask import current_app

    return current_app.response_class(
        json.dumps(value, allow_nan=False, separators=(",", ":")), mimetype="application/json"
    )
