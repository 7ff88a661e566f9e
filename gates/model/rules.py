"""What one metric must satisfy: its role, what is taken of it, the direction of harm and how much is tolerated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gates.model.metrics import METRICS, Metric
from gates.model.records import Run, Series
from gates.model.summaries import SUMMARIES

LOGGED = "trl/"
"""Before the names of what a trainer logs that is not a metric of ours."""


class Role(StrEnum):
    """HARD checks need no baseline; GATE metrics decide; GUARD ones block, but need not pass;
    ADVISORY ones warn; IGNORE switches a rule off."""

    HARD = "hard"
    GATE = "gate"
    GUARD = "guard"
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
    same scale. `headroom`: of memory, the increase is no more than this share of what the device has left beside the
    baseline. `weight`: the rule's share of the level of BLOCK, beside those of the other metrics that decide.
    `own`: what a metric is that is none of ours.
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
    headroom: float | None
    weight: float = 1.0
    own: Metric | None = None

    @property
    def info(self) -> Metric:
        """The metric's label, unit and nature."""
        return self.own or METRICS[self.metric]

    def series(self, run: Run) -> Series | None:
        """The run's series of the metric; of an own one also as a trainer's log has it."""
        found = run.series.get(self.metric)
        return run.series.get(LOGGED + self.metric) if found is None and self.own else found

    @property
    def unit(self) -> str:
        """The unit of the rule's numbers: none for tails and drifts, which are logarithms of ratios."""
        return "" if SUMMARIES[self.reduction].logarithmic else self.info.unit
