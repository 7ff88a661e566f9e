"""Times as reports and pages show them."""

from __future__ import annotations

import math
from datetime import UTC, datetime

MINUTE, HOUR, DAY = 60, 3600, 86_400


def moment(milliseconds: float | None) -> str:
    """`2026-11-21 14:43` (UTC); '' for none."""
    if not milliseconds:
        return ""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M}"


def duration(seconds: float | None) -> str:
    """`45 s`, `12 min`, `3.5 h`, `2 days`."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * HOUR:
        return f"{seconds / MINUTE:.0f} min"
    if seconds < 2 * DAY:
        return f"{seconds / HOUR:.1f} h"
    return f"{seconds / DAY:.0f} days"


def ago(milliseconds: float | None, now: float) -> str:
    """`12 min ago`."""
    return "" if not milliseconds else f"{duration(max(0.0, (now - milliseconds) / 1000))} ago"


def iso(text: str) -> str:
    """A ledger time (ISO 8601) to the minute."""
    return text[:16].replace("T", " ")
