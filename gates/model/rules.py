"""What one metric must satisfy: its role, how it becomes one number, which direction is harm, how much is tolerated."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from canary_mlflow.gates.model.fields import choice, flag, number, one_of, optional
from canary_mlflow.gates.model.metrics import METRICS, Metric
from canary_mlflow.gates.model.priors import LEAST_SPREAD
from canary_mlflow.gates.model.records import SUMMARIES, Run, Series

LARGEST_LOG = 700.0  # exp of it still is a float
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
    in the metric's unit on the identity scale. `prior` is the expected spread between runs, on the same scale.
    `headroom`: memory may grow by no more than this share of what the baseline leaves free on the device. `gain`: no
    more than this share of what the baseline gained by training may be lost. `weight`: the
    rule's share of the level of BLOCK, relative to the other metrics that decide. `own`: the description of a metric
    that is not in our table.
    """

    name: str
    metric: str
    role: Annotated[Role, choice(Role, kept_for={Role.HARD: "hard checks stand under 'hard:'"})]
    reduction: Annotated[str, one_of(SUMMARIES, "reduction")]
    scale: Annotated[Scale, choice(Scale)]
    worse: Annotated[Worse, choice(Worse)]
    margin: Annotated[float, number(0)]
    prior: Annotated[float, number(LEAST_SPREAD)]
    must_have: Annotated[bool, flag]
    headroom: Annotated[float | None, optional(number(0, 1, above=True))]
    weight: Annotated[float, number(0, above=True)] = 1.0
    gain: Annotated[float | None, optional(number(0, above=True))] = None
    own: Metric | None = None

    @property
    def blocks(self) -> bool:
        """Whether harm beyond the limit blocks."""
        return self.role in (Role.GATE, Role.GUARD)

    @property
    def info(self) -> Metric:
        """The metric's label, unit and nature."""
        return self.own or METRICS[self.metric]

    @property
    def label(self) -> str:
        """How a sentence names the rule: by its metric, with the reduction if the rule does not bear the metric's
        name."""
        return f"{self.info.label} ({self.reduction})" if self.name != self.metric else self.info.label

    def series(self, run: Run) -> Series | None:
        """The run's series of the metric; the user's own metric is also found under its name in a trainer's log."""
        found = run.series.get(self.metric)
        return run.series.get(LOGGED + self.metric) if found is None and self.own else found

    @property
    def harm_margin(self) -> float:
        """The margin in harm units, where larger is worse: the logarithm of a factor on the log scale."""
        return self.margin if self.scale is Scale.IDENTITY else self.sign * math.log1p(self.sign * self.margin)

    @property
    def sign(self) -> float:
        """What turns a larger value into larger harm."""
        return -1.0 if self.worse is Worse.LOWER else 1.0

    def change(self, harm: float) -> float:
        """As `as_change`, on the rule's own scale."""
        return as_change(harm, self.scale, self.sign)

    def widened(self, times: float) -> MetricRule:
        """The rule with its limits `times` as wide. On the log scale, a fall of 100 % or more is no limit."""
        falls = self.scale is Scale.LOG and self.worse is not Worse.HIGHER
        margin = min(0.99, times * self.margin) if falls else times * self.margin
        most = None if self.headroom is None else min(1.0, times * self.headroom)
        return replace(self, margin=margin, headroom=most, gain=None if self.gain is None else times * self.gain)

    @property
    def unit(self) -> str:
        """The unit of the rule's numbers: none for tails and drifts, which are logarithms of ratios."""
        return "" if SUMMARIES[self.reduction].logarithmic else self.info.unit


def as_change(harm: float, scale: Scale, sign: float) -> float:
    """A difference in harm units as a change in the metric's own direction: a fraction on the log scale, else in the
    metric's unit."""
    return sign * harm if scale is Scale.IDENTITY else math.expm1(min(sign * harm, LARGEST_LOG))
