"""A check's change on an axis in units of its limit: harm is to the right, whichever way the metric gets worse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gates.model.verdict import Evidence

FARTHEST = 2.5  # limits; what lies beyond is drawn at the edge
WIDTH = 360  # of the picture, in SVG units
EDGE = 12.0
COLUMNS = 21  # characters of the text drawing
AXIS, ZERO, LIMIT, RANGE, CENTRE, LEFT, RIGHT = "·│┃━●◂▸"


@dataclass(frozen=True, kw_only=True)
class Forest:
    """Where change, interval and limits lie, in units of the limit and within ±FARTHEST. `low`, `high`: None if no
    interval is known. `beyond_…`: it continues beyond that edge. `both`: the limit holds both ways."""

    centre: float | None
    low: float | None
    high: float | None
    both: bool = False
    beyond_left: bool = False
    beyond_right: bool = False

    @property
    def limits(self) -> tuple[float, ...]:
        """Where the limits lie."""
        return (1.0, -1.0) if self.both else (1.0,)


def forest(found: Evidence | None, *, both: bool) -> Forest | None:
    """The marks of a check; None if it has no limit or no change to draw."""
    if found is None or not found.margin or found.change is None:
        return None
    ends = sorted(one / found.margin for one in (found.change_low, found.change_high) if one is not None)
    reach = [0.0, found.change / found.margin, *ends]
    known = len(ends) == 2
    return Forest(
        centre=within(found.change / found.margin),
        low=within(ends[0]) if known else None,
        high=within(ends[-1]) if known else None,
        both=both,
        beyond_left=min(reach) < -FARTHEST,
        beyond_right=max(reach) > FARTHEST,
    )


def within(limits: float) -> float:
    """A value in limits, clipped to the axis: ±FARTHEST."""
    return max(-FARTHEST, min(FARTHEST, limits))


def x_of(limits: float) -> float:
    """The x coordinate of a value in the picture, in SVG units."""
    return round(WIDTH / 2 + within(limits) / FARTHEST * (WIDTH / 2 - EDGE), 1)


def in_letters(found: Forest | None) -> str:
    """The marks as COLUMNS characters: zero │, limit ┃, range ━, change ●, continues ◂ ▸; '' if there is nothing to
    draw."""
    if found is None or found.centre is None:
        return ""
    drawn = [AXIS] * COLUMNS
    if found.low is not None and found.high is not None:
        for at in range(column(found.low), column(found.high) + 1):
            drawn[at] = RANGE
    drawn[column(0.0)] = ZERO
    for limit in found.limits:
        drawn[column(limit)] = LIMIT
    drawn[column(found.centre)] = CENTRE
    if found.beyond_left:
        drawn[0] = LEFT
    if found.beyond_right:
        drawn[-1] = RIGHT
    return "".join(drawn)


def column(limits: float) -> int:
    """The column, from 0, of a value in limits."""
    return round((within(limits) + FARTHEST) / (2 * FARTHEST) * (COLUMNS - 1))


def both_ways(policy: Mapping[str, Any], name: str) -> bool:
    """Whether a rule of a verdict's policy treats either direction as harm."""
    return bool(policy.get("rules", {}).get(name, {}).get("worse") == "both")
