"""Numbers as people read them, in the same words as the judge's own sentences (ms, MiB, %)."""

from __future__ import annotations

from gates.model import wording
from gates.model.wording import counted as counted  # for training/, which may not import gates

NOTHING = "-"


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
    if relative:
        return f"[{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"[{wording.change(low, False, unit)}, {wording.change(high, False, unit)}]"


def limit(margin: float | None, *, relative: bool, unit: str, both: bool) -> str:
    """The largest tolerated change with its direction, or with both directions if it holds both ways."""
    return NOTHING if margin is None else wording.limit(margin, relative, unit, both)
