"""How values are written in reports and on pages: in the words of the judge's own sentences (ms, MiB, %); times; and
the colour of a word such as PASS."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from canary_mlflow.gates.model import wording
from canary_mlflow.gates.model.wording import counted as counted  # for training/, which may not import gates

NOTHING = "-"
MINUTE, HOUR, DAY = 60, 3600, 86_400
TONES = {
    "PASS": "good", "OK": "good", "BLOCK": "bad", "INCONCLUSIVE": "open", "UNCLEAR": "open", "WARN": "open",
    "WARNING": "open", "CRITICAL": "bad", "STOP": "bad", "STOPPED": "bad", "FAILED": "bad", "WARNED": "open",
    "BOOTSTRAP": "new", "BLESSED": "hand", "OVERRIDE": "hand", "ROLLBACK": "hand", "ADOPTED": "hand", "RUNNING": "live",
    "BEYOND": "bad", "NOT FINITE": "bad", "BLESS": "hand", "OVERRIDDEN": "hand", "WITHDRAWN": "open",
}  # fmt: skip


def quantity(value: float | None, unit: str) -> str:
    """A metric's value with a unit that fits its size."""
    return NOTHING if value is None else wording.quantity(value, unit)


def change(value: float | None, *, relative: bool, unit: str) -> str:
    """A signed difference: `+3.1 %` on a relative scale, else in the metric's own unit."""
    return NOTHING if value is None else wording.change(value, relative, unit)


def interval(low: float | None, high: float | None, *, relative: bool, unit: str) -> str:
    """`[-1.2, +4.0]` in the unit of the change before it; '' if an end is unknown."""
    if low is None or high is None:
        return ""
    if relative or unit == "points":
        ends = (100 * end if relative else end for end in (low, high))
        return "[{}, {}]".format(
            *(f"{end:+.0f}" if abs(end) >= 1000 else f"{round(end, 1) or 0.0:+.1f}" for end in ends)
        )
    return f"[{wording.change(low, False, unit)}, {wording.change(high, False, unit)}]"


def limit(margin: float | None, *, relative: bool, unit: str, both: bool) -> str:
    """The largest tolerated change with its direction, or with both directions if it holds both ways."""
    return NOTHING if margin is None else wording.limit(margin, relative, unit, both)


def sentence(text: str) -> str:
    """The text with a capital first letter and a full stop."""
    text = text.strip()
    return text and wording.sentence_case(text) + ("" if text[-1] in ".!?" else ".")


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


def tone(word: str) -> str:
    """The name of a word's colour; the word itself is always shown too."""
    return TONES.get(str(word).strip("()").upper(), "quiet")
