"""What one metric must satisfy: its role, how it becomes one number, which way is harm, how much is tolerated; and how
much runs are expected to differ before their own spread is measured, by what groups of unchanged runs tell, after
limma's fitFDist (Smyth, "Linear models and empirical Bayes methods", 2004)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

import numpy as np
import scipy

from canary_mlflow.gates.model.fields import choice, flag, number, one_of, optional
from canary_mlflow.gates.model.metrics import METRICS, Metric
from canary_mlflow.gates.model.records import SUMMARIES, Run, Series

LEAST_SPREAD = 1e-12
"""No spread between runs is smaller: rounding alone causes as much, and the square of a much smaller one is 0."""
SHIPPED_DF = 4.0
"""What a prior of the policy is worth: as much as three runs a side."""
MOST_DF = 10.0
"""What a learnt prior may be worth until it rests on MANY_GROUPS groups: of 10 groups, half are off by 35 %."""
MANY_GROUPS = 30
LEAST_DF = 2.0
"""Below it a fit says that the groups differ too much for one prior, and its spread is far from what was measured."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """The spread `sd` expected between equal runs, worth `df` degrees of freedom.

    `kind`: shipped (stated in the policy), calibrated (unchanged runs of one place), learnt (earlier runs, many groups
    of them or one long series).
    """

    sd: Annotated[float, number(LEAST_SPREAD)]
    df: Annotated[float, number(0, above=True)]
    kind: Annotated[str, one_of(dict.fromkeys(("calibrated", "learnt")), "kind")]


def fit_prior(variances: Sequence[float], dfs: Sequence[float]) -> tuple[float, float]:
    """The prior variance and its degrees of freedom (infinite if groups differ by chance alone), from the variances of
    groups of equal runs.

    Moments of the log variances (limma's fitFDist); needs at least two, all above zero.
    """
    half = np.asarray(dfs) / 2
    e = np.log(variances) - scipy.special.digamma(half) + np.log(half)
    excess = float(np.var(e, ddof=1) - np.mean(scipy.special.polygamma(1, half)))
    if excess <= 0:
        # All groups share one variance: the mean, weighted by degrees of freedom, estimates it best.
        return float(np.average(variances, weights=half)), math.inf
    prior_df = 2 * _inverse_trigamma(excess)
    return float(np.exp(np.mean(e) + scipy.special.digamma(prior_df / 2) - np.log(prior_df / 2))), prior_df


def learn_prior(variances: Sequence[float], dfs: Sequence[float]) -> Prior | None:
    """The prior from groups of unchanged runs: calibrated from one or two groups, learnt from more if they agree so
    well that the fit is worth LEAST_DF; None if no group has a spread."""
    pairs = [(variance, df) for variance, df in zip(variances, dfs, strict=True) if variance > 0 and df > 0]
    total = sum(df for _, df in pairs)
    if not pairs:
        return None
    variance, df = fit_prior(*zip(*pairs, strict=True)) if len(pairs) >= 3 else (math.nan, 0.0)
    if df < LEAST_DF:
        pooled = sum(variance * df for variance, df in pairs) / total
        return Prior(sd=math.sqrt(pooled), df=min(total, MOST_DF), kind="calibrated")
    if len(pairs) < MANY_GROUPS:
        df = min(df, MOST_DF)
    return Prior(sd=math.sqrt(variance), df=min(df, total), kind="learnt")


def _inverse_trigamma(value: float) -> float:
    """x with trigamma(x) = value > 0; to first order where x is far from 1."""
    if not 1e-6 < value < 1e7:
        return max(1 / value, 1 / math.sqrt(value))
    return float(scipy.optimize.brentq(lambda x: scipy.special.polygamma(1, x) - value, 1e-4, 1e7))


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
