"""Whole numbers in tags, which anybody can set to anything."""

from __future__ import annotations

DIGITS = 18  # more than any step, seed or time has; a database's integers have 19


def whole(text: str) -> int | None:
    """The number that a text is, with a minus or without; None for any other text. `²` is a digit to Python, and no
    number."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= DIGITS else None


def count(text: str) -> int:
    """The same of what is never negative; 0 for any other text."""
    return max(whole(text) or 0, 0)
