"""The canonical spelling of a value, which is hashed and signed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def canonical(value: Mapping[str, Any]) -> str:
    """JSON with sorted keys, no spaces, ASCII only. Raises ValueError for NaN and infinity, which JSON does not
    have."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: Mapping[str, Any]) -> str:
    """sha256 of the canonical spelling, in hex."""
    return text_digest(canonical(value))


def text_digest(text: str) -> str:
    """sha256 of a text as UTF-8, in hex; a lone surrogate, which no canonical text holds, still gets a digest."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
