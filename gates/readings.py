"""One rule applied to runs: the number each run gives, on the scale and in the direction of the rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gates.policy import Policy
from gates.records import Run, Series
from gates.rules import MetricRule, Role, Scale, Worse
from gates.spreads import Floor
from gates.summaries import SUMMARIES, rate
from gates.wobble import own_variance, recurs, within_run
from gates.wording import called, quantity

LEAST_POINTS = 8
"""Fewer means of several steps are no middle of anything."""
_LARGEST_LOG = 700.0  # exp of it still is a float


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """A run's number `value` with its within-run standard error `se` and the numbers of its `batches`, in the metric's
    unit; `last_step`: the run's, which the series may end before; `warmup`: how many points of the series are warm-up.
    """

    run_id: str
    seed: int | None
    series: Series
    value: float
    se: float
    batches: NDArray[np.float64]
    dropped: int
    last_step: int
    warmup: int

    @property
    def called(self) -> str:
        """Its run, as sentences name it."""
        return called(self.run_id, self.seed)


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """How values become harm units: y = sign * log(value), or sign * value where `scale` is identity. `planned`: the
    `prior` that more runs will be judged by."""

    scale: Scale
    sign: float
    margin: float
    prior: float
    planned: float

    @property
    def relative(self) -> bool:
        """True on the log scale."""
        return self.scale is Scale.LOG

    def harm(self, reading: Reading) -> float:
        """The reading in harm units."""
        return self.sign * (math.log(reading.value) if self.scale is Scale.LOG else reading.value)

    def harms(self, readings: Sequence[Reading]) -> NDArray[np.float64]:
        """The readings in harm units, in their order."""
        return np.array([self.harm(reading) for reading in readings])

    def floor(self, left: Sequence[Reading], right: Sequence[Reading]) -> Floor:
        """Mean squared within-run standard error, in harm units squared; without what the runs of a side wobble by
        together where all have the same steps."""
        sides, readings = (left, right), [*left, *right]
        if _same_steps(readings):
            variance = own_variance([[r.batches / self._unit(r) for r in side] for side in sides])
        else:
            variance = math.fsum((r.se / self._unit(r)) ** 2 for r in readings) / len(readings)
        return Floor(variance=variance, recurring=all(recurs(r.batches) for r in readings))

    def _unit(self, reading: Reading) -> float:
        return reading.value if self.scale is Scale.LOG else 1.0

    def change(self, harm: float) -> float:
        """A difference in harm units as a change in the metric's own direction: a fraction on the log
        scale."""
        if self.scale is Scale.IDENTITY:
            return self.sign * harm
        return math.expm1(min(self.sign * harm, _LARGEST_LOG))

    def centre(self, harms: NDArray[np.float64]) -> float:
        """The middle of one side in the metric's unit: geometric mean on the log scale, else the mean."""
        mean = self.sign * math.fsum(harms) / len(harms)
        return math.exp(mean) if self.scale is Scale.LOG else mean


def _same_steps(readings: Sequence[Reading]) -> bool:
    """True for runs whose batches stand for the same steps."""
    first = readings[0]
    return all(
        len(r.batches) and not r.dropped and np.array_equal(r.series.steps, first.series.steps) for r in readings
    )


def read(policy: Policy, rule: MetricRule, runs: Sequence[Run]) -> tuple[list[Reading], str]:
    """Each run's reading, and why the last of the runs without one has none ('' if all have one)."""
    readings, problem = [], ""
    for run in runs:
        with np.errstate(all="ignore"):  # values at the edge of floats end as NaN or infinity, and are refused below
            found = _read_one(policy, rule, run)
        if isinstance(found, str):
            problem = found
        else:
            readings.append(found)
    return readings, problem


def _read_one(policy: Policy, rule: MetricRule, run: Run) -> Reading | str:
    series = _series(policy, rule, run)
    if series is None or not len(series.values):
        return f"{rule.info.label} was not recorded"
    if not np.any(series.finite):
        return f"{rule.info.label} has no finite value"
    summary = SUMMARIES[rule.reduction]
    warmup, least = points(policy, series)
    values = summary.values(series, warmup)
    if not summary.single:
        usable = int(np.count_nonzero(series.finite[warmup:]))
        if usable < least:
            few = f"{rule.info.label} has {usable} values after warm-up, the policy asks for {least}"
            return f"too few rows to judge: {few}"
        if rule.role is Role.GATE and usable < summary.decides_from:
            return f"{rule.info.label} has {usable} values after warm-up, to decide takes {summary.decides_from}"
    value, (se, batches) = summary(series, warmup), within_run(summary, values)
    if not math.isfinite(value):
        return f"{rule.info.label} has too few finite values in the part of the run that is judged"
    return Reading(
        run_id=run.run_id,
        seed=run.seed,
        series=series,
        value=value,
        se=se,
        batches=batches,
        dropped=int(np.count_nonzero(~series.finite)),
        last_step=max(run.last_step, int(series.steps[-1])),
        warmup=warmup,
    )


def points(policy: Policy, series: Series) -> tuple[int, int]:
    """How many points of the series are warm-up, and how many must follow: one for each of the policy's steps, or for
    as many steps where the points stand for several (a loss that is logged every tenth step) and would be too few."""
    usable, spacing = int(np.count_nonzero(series.finite[policy.warmup_steps :])), series.spacing
    if usable >= policy.min_steps or spacing <= 1:
        return policy.warmup_steps, policy.min_steps
    return math.ceil(policy.warmup_steps / spacing), max(LEAST_POINTS, math.ceil(policy.min_steps / spacing))


def _series(policy: Policy, rule: MetricRule, run: Run) -> Series | None:
    if rule.reduction != "rate":
        return run.series.get(rule.metric)
    tokens, times = run.series.get("tokens"), run.series.get("step_time")
    if tokens is None or times is None:
        return None
    times = times.finite_only()
    return rate(tokens.finite_only(), times, points(policy, times)[0])


def yardstick(
    policy: Policy, rule: MetricRule, baseline: Sequence[Reading], candidate: Sequence[Reading]
) -> Yardstick | str:
    """The rule's scale, sign and margin for these readings (at least one per side), or why there is none."""
    sign = -1.0 if rule.worse is Worse.LOWER else 1.0
    values = [reading.value for reading in (*baseline, *candidate)]
    known = policy.prior_of(rule)
    scale, prior, margin = rule.scale, known.sd, rule.margin
    if scale is Scale.LOG and min(values) <= 0:
        typical = math.fsum(sorted(abs(value) for value in values)) / len(values)
        if not rule.info.may_be_signed or typical == 0:
            return f"{rule.info.label} of {quantity(min(values), rule.info.unit)} has no relative change"
        # A loss that goes through zero: some times its expected spread, in units of its own size.
        margin = policy.signed_priors * prior * typical
        prior *= typical
        return Yardstick(scale=Scale.IDENTITY, sign=sign, margin=margin, prior=prior, planned=prior)
    if scale is Scale.LOG:
        margin = -math.log1p(-margin) if rule.worse is Worse.LOWER else math.log1p(margin)
    planned = prior
    if rule.max_increase is not None:
        cap = rule.max_increase
        if scale is Scale.LOG:
            cap = math.log1p(cap / math.exp(math.fsum(math.log(r.value) for r in baseline) / len(baseline)))
        # A shipped prior is stated beside the margin and keeps its share of it: large memory does not wobble more. Not
        # where nothing else is known of the spread: one run a side would pass with any.
        if known.kind == "shipped" and margin > 0:
            planned = prior * min(1.0, cap / margin)
        prior, margin = planned if len(values) > 2 else prior, min(margin, cap)
    return Yardstick(scale=scale, sign=sign, margin=margin, prior=prior, planned=planned)
