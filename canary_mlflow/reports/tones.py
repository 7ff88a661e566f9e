"""The colour that goes with a word, on the live pages and in reports."""

from __future__ import annotations

TONES = {
    "PASS": "good", "OK": "good", "BLOCK": "bad", "INCONCLUSIVE": "open", "UNCLEAR": "open", "WARN": "open",
    "WARNING": "open", "CRITICAL": "bad", "STOP": "bad", "STOPPED": "bad", "FAILED": "bad", "WARNED": "open",
    "BOOTSTRAP": "new", "BLESSED": "hand", "OVERRIDE": "hand", "ROLLBACK": "hand", "ADOPTED": "hand", "RUNNING": "live",
    "BEYOND": "bad", "NOT FINITE": "bad", "BLESS": "hand", "OVERRIDDEN": "hand",
}  # fmt: skip


def tone(word: str) -> str:
    """The colour that goes with a word; the word itself always stands beside it."""
    return TONES.get(str(word).strip("()").upper(), "quiet")
