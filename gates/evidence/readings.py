"""One rule applied to runs: the number each run gives, on the scale and in the direction of the rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean

import numpy as np

from canary_mlflow.gates.model.metrics import metrics_with
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import EDGE, SUMMARIES, Run, Series, Values, rate
from canary_mlflow.gates.model.rules import LARGEST_LOG, MetricRule, Prior, Role, Scale, as_change
from canary_mlflow.gates.model.wording import quantity

LEAST_POINTS = 8
"""Fewer means of several steps are no middle of anything."""
TOO_SHORT = "too few rows to judge"
"""How the reason of a check begins whose series ended too early."""
VERIFIED = (-1.0, 2.0)
"""Between these lie rewards for right and wrong answers, whichever way they are counted, and shares of a best one."""
SCORES = 5.0
"""What a run reaches by scores for which a policy's limits on rewards are meant: the canaries' GRPO ends at 4 to 8."""
LARGEST = math.exp(LARGEST_LOG)
"""Larger numbers are judged as this one: their sums overflow."""
_REWARDS = metrics_with("reward")
MEASURED_BY = {
    "eval_loss": ("loss",),
    "eval_accuracy": ("reward_accuracy",),
    "eval_margin": ("reward_margin",),
    "eval_reward": ("reward_mean", "score_mean"),
}
"""What a training measures of its own rows as an evaluation does of others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """A run's number `value`, in the metric's unit, and the series that it is of. `last_step`: of the run; the series
    may end earlier. `warmup`: how many points of the series are warm-up."""

    run: Run
    series: Series
    value: float
    last_step: int
    warmup: int

    @property
    def in_rollouts(self) -> Reading:
        """The same by rollouts: each point at that of its step."""
        rollouts = np.ceil(self.series.steps / self.run.updates).astype(np.int64)
        last = math.ceil(self.last_step / self.run.updates)
        return replace(self, series=replace(self.series, steps=rollouts), last_step=last)

    @property
    def to_the_end(self) -> bool:
        """Whether the series goes on as long as its run: no more than a tenth of the run, or a point, is missing."""
        return self.last_step - int(self.series.steps[-1]) <= max(EDGE * self.last_step, self.series.spacing)


@dataclass(frozen=True, kw_only=True)
class HarmScale:
    """How values become harm units: y = sign * log(value), or sign * value where `scale` is identity."""

    scale: Scale
    sign: float
    margin: float
    prior: Prior

    @property
    def relative(self) -> bool:
        return self.scale is Scale.LOG

    def harm(self, reading: Reading) -> float:
        return self.sign * (math.log(reading.value) if self.scale is Scale.LOG else reading.value)

    def harms(self, readings: Sequence[Reading]) -> Values:
        return np.array([self.harm(reading) for reading in readings])

    def change(self, harm: float) -> float:
        """A difference in harm units as a change of the metric (`as_change`)."""
        return as_change(harm, self.scale, self.sign)

    def centre(self, readings: Sequence[Reading]) -> float:
        """The middle of one side in the metric's unit: geometric mean on the log scale, else the mean."""
        return (geometric_mean if self.relative else fmean)(reading.value for reading in readings)


def read(policy: Policy, rule: MetricRule, runs: Sequence[Run]) -> tuple[list[Reading], str]:
    """The readings of the runs that have one, and why the last run without one has none ('' if all have one)."""
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
    if not summary.single:
        usable = int(np.count_nonzero(series.finite[warmup:]))
        if usable < least:
            few = f"{rule.info.label} has {usable} values after warm-up, the policy asks for {least}"
            return f"{TOO_SHORT}: {few}"
        if rule.role is Role.GATE and usable < summary.decides_from:
            return f"{rule.info.label} has {usable} values after warm-up, to decide takes {summary.decides_from}"
    value = summary(series, warmup)
    if not math.isfinite(value):
        return f"{rule.info.label} has too few finite values in the part of the run that is judged"
    return Reading(
        run=run,
        series=series,
        value=max(-LARGEST, min(value, LARGEST)),
        last_step=max(run.last_step, int(series.steps[-1])),
        warmup=warmup,
    )


def points(policy: Policy, series: Series) -> tuple[int, int]:
    """How many points of the series are warm-up, and how many must follow. A point counts as one of the policy's steps;
    if points stand for several steps (a loss logged every tenth step) and would be too few, their steps count."""
    usable = int(np.count_nonzero(series.finite[policy.warmup_steps :]))
    if usable >= policy.min_steps or series.spacing <= 1:
        return policy.warmup_steps, policy.min_steps
    steps = series.spacing
    return math.ceil(policy.warmup_steps / steps), max(LEAST_POINTS, math.ceil(policy.min_steps / steps))


def _series(policy: Policy, rule: MetricRule, run: Run) -> Series | None:
    """The rule's series; for a rate or a number per token, the quotients whose mean is the run's."""
    parts = {"rate": ("tokens", "step_time"), "per_token": (rule.metric, "tokens")}.get(rule.reduction)
    if parts is None or (rule.reduction == "rate" and "step_time" not in run.series):  # a log may tell the rate alone
        return rule.series(run)
    above, below = (run.series.get(name) for name in parts)
    if above is None or below is None:
        return None
    below = below.finite_only()
    return rate(above.finite_only(), below, points(policy, below)[0])


def harm_scale(
    policy: Policy, rule: MetricRule, baseline: Sequence[Reading], candidate: Sequence[Reading]
) -> HarmScale | str:
    """The rule's scale, sign and margin for these readings (at least one per side), or why there is none. Of several
    limits the tightest counts, and a prior that the policy states relative to its margin shrinks with it."""
    sign, info, scale, prior = rule.sign, rule.info, rule.scale, policy.prior_of(rule)
    if info.least:  # in its own unit, as next to nothing has no relative change
        margin = max(rule.margin * fmean(reading.value for reading in baseline), info.least)
        prior = replace(prior, sd=prior.sd * margin / (rule.margin or 1.0))
        return HarmScale(scale=Scale.IDENTITY, sign=sign, margin=margin, prior=prior)
    values = [reading.value for reading in (*baseline, *candidate)]
    if scale is Scale.LOG and min(values) <= 0:
        typical = fmean(map(abs, values))
        if not info.may_be_signed or typical == 0:
            return f"{info.label} of {quantity(min(values), info.unit)} has no relative change"
        # A loss that crosses zero: margin and prior are shares of its own size.
        prior = replace(prior, sd=prior.sd * typical)
        return HarmScale(scale=Scale.IDENTITY, sign=sign, margin=rule.margin * typical, prior=prior)
    margin = rule.harm_margin
    if info.reward and scale is Scale.IDENTITY and (share := _share_of_scores(rule, margin, baseline)) < 1:
        margin = share * margin
        prior = replace(prior, sd=share * prior.sd) if prior.kind == "shipped" else prior
    for most in (_share_of_room(rule, scale, baseline, candidate), _share_of_gain(rule, scale, sign, baseline)):
        if most < margin:
            prior = replace(prior, sd=prior.sd * most / margin) if prior.kind == "shipped" and most > 0 else prior
            margin = most
    return HarmScale(scale=scale, sign=sign, margin=margin, prior=prior)


def _share_of_room(rule: MetricRule, scale: Scale, baseline: Sequence[Reading], candidate: Sequence[Reading]) -> float:
    """The rule's share of what the baseline leaves free on the device, in harm units; infinite where none is asked."""
    if rule.headroom is None or scale is not Scale.LOG:
        return math.inf
    level = geometric_mean(reading.value for reading in baseline)
    memory = [reading.run.environment.get("gpu_memory", "") for reading in (*baseline, *candidate)]
    left = max(0.0, min(float(said) if said.isdigit() else math.inf for said in memory) - level)
    return math.log1p(rule.headroom * left / level)


def _share_of_scores(rule: MetricRule, margin: float, baseline: Sequence[Reading]) -> float:
    """What share of a limit for scores is one for rewards of right and wrong answers, of which it would let most be
    lost; 1 for other rewards. They are known by the rewards of any kind, as an evaluation at the end alone may lie
    anywhere (one function's, by its own). What counts is how much the baseline gained over the worst answer."""
    names = (rule.metric,) if rule.own else _REWARDS
    known = [[value for name in names for value in reading.run.finite(name)] for reading in baseline]
    if not all(known):
        return 1.0
    lowest, highest = min(map(min, known)), max(map(max, known))
    best = max(reading.value for reading in baseline)
    reached = best - min(0.0, lowest)
    verified = VERIFIED[0] <= lowest and highest <= VERIFIED[1] and best > 0
    return reached / SCORES if verified and reached < 4 * margin else 1.0


def _share_of_gain(rule: MetricRule, scale: Scale, sign: float, baseline: Sequence[Reading]) -> float:
    """The rule's share of what the baseline gained by its training, in harm units; infinite where that is not known, or
    nothing was gained, which is for other checks to say."""
    if rule.gain is None or not all(reading.to_the_end for reading in baseline):
        return math.inf
    gained = fmean(sign * (_start(rule, reading) - reading.value) for reading in baseline)
    if not 0 < gained < math.inf:
        return math.inf
    level, lost = fmean(reading.value for reading in baseline), rule.gain * gained
    return lost if scale is Scale.IDENTITY else sign * math.log1p(max(sign * lost / level, -0.99))


def _start(rule: MetricRule, reading: Reading) -> float:
    """What was measured first, and early: an evaluation, or the same in training, which in its first step is what the
    loss defines, such as DPO's ln 2; NaN if that is not known. Where evaluations are counted in place of steps, the
    first may come late."""
    run, series = reading.run, reading.series
    trained = [run.series[name].finite_only() for name in MEASURED_BY.get(rule.metric, ()) if name in run.series]
    evaluated = [series.finite_only()] if len(series.steps) > 1 else []
    known = [one for one in (*evaluated, *trained) if len(one.steps)]
    first = min(known, key=lambda one: int(one.steps[0]), default=None)
    early = first is not None and first.steps[0] <= max(first in trained, EDGE * run.last_step)
    return float(first.values[0]) if first is not None and early else math.nan
