"""Reads whole numbers from tags, which anybody can set to anything."""

from __future__ import annotations

DIGITS = 18  # more than any step, seed or time has; a database's integers have 19


def whole(text: str) -> int | None:
    """The whole number that a text holds, with or without a minus; None for any other text. Python calls `²` a digit,
    but it is not a number."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= DIGITS else None


def count(text: str) -> int:
    """The same for a number that is never negative; 0 for any other text."""
    return max(whole(text) or 0, 0)
