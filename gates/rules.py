"""What one metric must satisfy: its role, what is taken of it, the direction of harm and how much is tolerated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gates.metrics import METRICS, MetricInfo
from gates.summaries import SUMMARIES


class Role(StrEnum):
    """HARD checks need no baseline; GATE metrics decide; ADVISORY ones warn; IGNORE switches a rule off."""

    HARD = "hard"
    GATE = "gate"
    ADVISORY = "advisory"
    IGNORE = "ignore"


class Scale(StrEnum):
    """LOG: changes are relative. IDENTITY: changes are in the metric's own unit."""

    LOG = "log"
    IDENTITY = "identity"


class Worse(StrEnum):
    """The direction of a change that is harm."""

    HIGHER = "higher"
    LOWER = "lower"
    BOTH = "both"


@dataclass(frozen=True, kw_only=True)
class MetricRule:
    """How one metric is judged.

    `margin` is the largest worsening that is tolerated: a fraction on the log scale (0.15 = 15 % worse),
    the metric's unit on the identity scale. `prior` is the spread between runs that is expected, on the
    same scale. `max_increase` (the metric's unit) caps the margin where a fraction of the baseline would be
    more than that.
    """

    name: str
    metric: str
    role: Role
    reduction: str
    scale: Scale
    worse: Worse
    margin: float
    prior: float
    must_have: bool
    max_increase: float | None

    @property
    def info(self) -> MetricInfo:
        """The metric's label, unit and nature."""
        return METRICS[self.metric]

    @property
    def unit(self) -> str:
        """The unit of the rule's numbers: none for tails and drifts, which are logarithms of ratios."""
        return "" if SUMMARIES[self.reduction].logarithmic else self.info.unit
