"""The colour of a word such as PASS, on the live pages and in reports."""

from __future__ import annotations

TONES = {
    "PASS": "good", "OK": "good", "BLOCK": "bad", "INCONCLUSIVE": "open", "UNCLEAR": "open", "WARN": "open",
    "WARNING": "open", "CRITICAL": "bad", "STOP": "bad", "STOPPED": "bad", "FAILED": "bad", "WARNED": "open",
    "BOOTSTRAP": "new", "BLESSED": "hand", "OVERRIDE": "hand", "ROLLBACK": "hand", "ADOPTED": "hand", "RUNNING": "live",
    "BEYOND": "bad", "NOT FINITE": "bad", "BLESS": "hand", "OVERRIDDEN": "hand",
}  # fmt: skip


def tone(word: str) -> str:
    """The name of a word's colour; the word itself is always shown too."""
    return TONES.get(str(word).strip("()").upper(), "quiet")
