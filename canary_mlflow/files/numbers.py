"""Numbers as programs print them: one grammar for all readers, so that NaN is a value everywhere, and never part of a
name or a reason to pass over a line."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from typing import Any

_THOUSANDS = r"[1-9]\d{0,2}(?:,\d{3})+(?![\d,])"
BEGINS = rf"[-+]?(?:{_THOUSANDS}|\d|\.\d|nan\b|inf(?:inity)?\b)"
"""How a number begins, in a pattern that ignores case."""
_GROUPED = re.compile(rf"[-+]?{_THOUSANDS}(?:\.\d*)?")
# `nan(ind)`, `-1.#IND00`, `1.#QNAN`, `1.#INF`: as Microsoft's C prints them; `nan.0`: as Lightning's bar does.
_ODD = re.compile(r"([-+]?)(?:1\.?#)?(?:(inf)|[qs]?nan|ind)(?:\d*|\(\w*\)?|\.0)", re.IGNORECASE)
_BARE = re.compile(r"(?<=[:\[,\s])\+?(-?)(?:(nan)|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)


def number(text: str) -> float:
    """The number that a text says. Raises ValueError if it says none."""
    with suppress(ValueError):
        return float(text)  # also nan, inf, Infinity, in any case
    if (found := _ODD.fullmatch(text.strip())) and text.strip().lower() != "ind":
        return float(f"{found[1]}inf") if found[2] else math.nan
    return float(text.replace(",", "") if _GROUPED.fullmatch(text.strip()) else text)


def number_or_none(text: str) -> float | None:
    """The same, None for a text that says none."""
    with suppress(ValueError):
        return number(text)
    return None


def json_value(text: str) -> Any:
    """The value of a JSON text, in which nan and inf may stand bare in any case. Raises ValueError, RecursionError."""
    with suppress(ValueError):
        return json.loads(text)
    return json.loads(_BARE.sub(lambda found: "NaN" if found[2] else f"{found[1]}Infinity", text))
