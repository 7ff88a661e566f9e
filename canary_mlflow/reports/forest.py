"""A check's change on an axis in units of its limit: harm is to the right, whichever way the metric gets worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from canary_mlflow.gates.evidence.readings import Reading, harm_scale, read
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.rules import MetricRule
from canary_mlflow.gates.model.verdict import Evidence
from canary_mlflow.reports.formatting import quantity

FARTHEST = 2.5  # limits; what lies beyond is drawn at the edge
WIDTH = 360  # of the picture, in SVG units
EDGE = 12.0
COLUMNS = 21  # characters of the text drawing
AXIS, ZERO, LIMIT, RANGE, CENTRE, LEFT, RIGHT = "·│┃━●◂▸"


@dataclass(frozen=True, kw_only=True)
class Forest:
    """Where change, interval and limits lie, in units of the limit and within ±FARTHEST. `low`, `high`: None if no
    interval is known. `beyond_…`: it continues beyond that edge. `both`: the limit holds both ways."""

    centre: float
    low: float | None
    high: float | None
    both: bool = False
    beyond_left: bool = False
    beyond_right: bool = False

    @property
    def limits(self) -> tuple[float, ...]:
        """Where the limits lie."""
        return (1.0, -1.0) if self.both else (1.0,)


@dataclass(frozen=True, kw_only=True)
class Dot:
    """One run on the axis: its position in limits, its value as text, and which run and side it is."""

    at: float
    run_id: str
    seed: str
    side: str
    shown: str


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


def dots_of(
    policy: Policy, rule: MetricRule, baseline: Sequence[Run], candidate: Sequence[Run], margin: float
) -> list[Dot]:
    """A dot for each run: its change against the middle of the baseline, in limits."""
    left, right = read(policy, rule, baseline)[0], read(policy, rule, candidate)[0]
    scale = harm_scale(policy, rule, left, right) if left and right else ""
    if isinstance(scale, str):
        return []
    middle = sum(scale.harm(one) for one in left) / len(left)

    def dot(reading: Reading, side: str) -> Dot:
        change = scale.change(scale.harm(reading) - middle)
        seed = "" if reading.run.seed is None else str(reading.run.seed)
        shown = quantity(reading.value, rule.unit)
        return Dot(at=within(change / margin), run_id=reading.run.run_id, seed=seed, side=side, shown=shown)

    return [*(dot(one, "baseline") for one in left), *(dot(one, "candidate") for one in right)]


def within(limits: float) -> float:
    """A value in limits, clipped to the axis: ±FARTHEST."""
    return max(-FARTHEST, min(FARTHEST, limits))


def x_of(limits: float) -> float:
    """The x coordinate of a value in the picture, in SVG units."""
    return round(WIDTH / 2 + within(limits) / FARTHEST * (WIDTH / 2 - EDGE), 1)


def in_letters(found: Forest | None) -> str:
    """The marks as COLUMNS characters: zero │, limit ┃, range ━, change ●, continues ◂ ▸; '' if there is nothing to
    draw."""
    if found is None:
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
