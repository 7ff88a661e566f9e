"""Whether the numbers of both sides can be believed, and cover the same part of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from canary_mlflow.gates.evidence.readings import HarmScale, Reading
from canary_mlflow.gates.model.records import EDGE, SUMMARIES, Run, Series, iqm
from canary_mlflow.gates.model.rules import MetricRule, Worse
from canary_mlflow.gates.model.wording import many, quantity

MOST_MIB = 1e7
"""10 TiB: more than any machine has for one training, and 10 MiB in bytes, less than any training takes."""
FAR = 5.0
"""Times apart, for two runs of a side: a slip of the pen is ten times."""
TOO_GOOD = 50.0
"""Times better: no gain is believed to be as large, and a wrong unit is off by sixty or a thousand."""
SCALED, ALIKE = 3.0, 1.25
"""A loss so many times as large from its first value on, and alike but for the second factor all the way, is on another
scale: before the first update there is no harm."""
_STANDING = 0.02  # of the steps; a coarse clock may miss one


def implausible(rule: MetricRule, scale: HarmScale, baseline: Sequence[Reading], candidate: Sequence[Reading]) -> str:
    """What cannot be believed, in one clause; '' if nothing: differences too large for two runs of one workload, from a
    mistake in a file or its unit, or a machine in trouble.

    Within a side: runs that are FAR apart. Between the sides: only a candidate that is TOO_GOOD; one that is as much
    worse is a regression, whatever its cause. Metrics that may move both ways (a gradient norm, a KL) do differ by such
    factors, and on the identity scale factors mean nothing. But shares are not percents, a loss that has become zero,
    or as negative as it was positive, is not a loss, and clocks do not stand still.
    """
    everyone, info = [*baseline, *candidate], rule.info
    largest = max(everyone, key=lambda reading: (reading.value, reading.run.run_id))
    said = f"{_of(rule, largest)} is {quantity(largest.value, info.unit)}"
    if info.unit == "MiB" and largest.value >= MOST_MIB:
        return f"{said}: perhaps bytes; expected MiB"
    if info.share:
        wrong = _percent(rule, everyone)
        return wrong and said + wrong
    found = "" if info.repeatable else _standing_clock(rule, everyone)
    if info.may_be_signed:
        found = found or _vanished(rule, baseline, candidate)
    if info.training_loss and scale.relative:
        found = found or _other_scale(rule, baseline, candidate)
    if found or not scale.relative or rule.worse is Worse.BOTH:
        return found
    odd = _odd_one(rule, baseline, everyone) or _odd_one(rule, candidate, everyone)
    return odd or _too_good(rule, baseline, candidate)


def _percent(rule: MetricRule, everyone: Sequence[Reading]) -> str:
    """What is wrong with percents that are compared with shares, or judged by a limit in shares: a limit of 0.05 would
    mean a twentieth of a percent point. Percents throughout, with a limit in percent, are a unit like any other."""
    above = [reading.value > 1 for reading in everyone]
    if not any(above) or (all(above) and rule.margin >= 1):
        return ""
    if not all(above):
        return ", others are not above 1: perhaps percent, or a slip"
    limit = f"give rules.{rule.name} a margin and a prior in percent"
    return f": percent, by a limit of {rule.margin:g}; expected shares of 1, or {limit}"


def _standing_clock(rule: MetricRule, everyone: Sequence[Reading]) -> str:
    """Times and costs of zero or less: the clock stood still, or the steps were never made."""
    for reading in everyone:
        values = reading.series.finite_only().values[reading.warmup :]
        count = int(np.count_nonzero(values <= 0))
        if count > _STANDING * len(values):
            return f"{_of(rule, reading)} is zero or less at {count} of {len(values)} steps"
    return ""


def _vanished(rule: MetricRule, baseline: Sequence[Reading], candidate: Sequence[Reading]) -> str:
    """A loss that was above zero, and now is exactly 0 at many steps, or in all runs as far below zero as half of what
    it was above: no label is left to learn from, a NaN was logged as a number, or a sign was lost. Losses that wobble
    around zero, or go a little below it, are losses."""
    if any(np.any(reading.series.finite_only().values <= 0) for reading in baseline):
        return ""
    for reading in candidate:
        count, length = int(np.count_nonzero(reading.series.values == 0)), len(reading.series.values)
        if count > _STANDING * length:
            return f"{_of(rule, reading)} is exactly 0 at {count} of {length} steps, before at none"
    here, there = _medians(baseline, candidate)
    if max(reading.value for reading in candidate) >= 0 or there > -here / 2:
        return ""
    return f"{_both(rule, here, there)}: too good to be believed, perhaps a sign was lost"


def _other_scale(rule: MetricRule, baseline: Sequence[Reading], candidate: Sequence[Reading]) -> str:
    """A loss as many times as large, or as small, at its first value as in the run's middle and at its end."""
    before, now = (np.median([_on_the_way(reading) for reading in side], axis=0) for side in (baseline, candidate))
    resumed = any(reading.series.steps[0] > max(1, reading.series.spacing) for reading in (*baseline, *candidate))
    if resumed or not (np.all(before > 0) and np.all(now > 0)):
        return ""
    times = now / before
    if max(times) > ALIKE * min(times) or 1 / SCALED < times[0] < SCALED:
        return ""
    return (
        f"{rule.info.label} is {many(times[0])} the baseline's from the first value to the last: another scale, "
        "such as a sum for a mean, on which nothing can be compared without an evaluation"
    )


def _on_the_way(reading: Reading) -> list[float]:
    """A series' first value, and the medians of its middle third and its last."""
    values = reading.series.finite_only().values
    third = max(1, len(values) // 3)
    return [float(values[0]), float(np.median(values[third : 2 * third])), float(np.median(values[-third:]))]


def _odd_one(rule: MetricRule, side: Sequence[Reading], everyone: Sequence[Reading]) -> str:
    """The run of a side that is furthest off, if the side's runs are FAR apart. Of what is learned, it must be FAR off
    every other run of both sides: losses near zero differ that much by nature, and each has another beside it."""
    if max(reading.value for reading in side) < FAR * min(reading.value for reading in side):
        return ""
    middle = median(reading.value for reading in everyone)
    odd = max(side, key=lambda reading: (abs(math.log(reading.value / middle)), reading.run.run_id))
    others = [other.value for other in everyone if other.run.run_id != odd.run.run_id]
    if rule.info.repeatable and any(max(odd.value / other, other / odd.value) < FAR for other in others):
        return ""
    shown, usual = (quantity(value, rule.info.unit) for value in (odd.value, middle))
    return (
        f"{_of(rule, odd)} is {shown}, {_times(max(odd.value / middle, middle / odd.value))} off the "
        f"median of all runs ({usual}): a slip in its file or unit, or a machine in trouble; fix it or leave it out"
    )


def _too_good(rule: MetricRule, baseline: Sequence[Reading], candidate: Sequence[Reading]) -> str:
    here, there = _medians(baseline, candidate)
    better = here / there if rule.worse is Worse.HIGHER else there / here
    if better < TOO_GOOD:
        return ""
    said = f"{_both(rule, here, there)} is {_times(better)} better"
    return f"{said}: too good to be believed, perhaps a slip in one side's unit"


def _medians(*sides: Sequence[Reading]) -> list[float]:
    return [median(reading.value for reading in side) for side in sides]


def _of(rule: MetricRule, reading: Reading) -> str:
    return f"{rule.info.label} of {reading.run.called}"


def _both(rule: MetricRule, here: float, there: float) -> str:
    return f"{rule.info.label} {quantity(here, rule.info.unit)} → {quantity(there, rule.info.unit)}"


def _times(factor: float) -> str:
    return f"{factor:.1f} times" if factor < 1e6 else f"{factor:.1e} times"


_PLACES = {
    1.0: "end at",
    0.0: "begin at",
    0.5: "have half of their points up to",
    0.25: "have a quarter of their points up to",
    0.75: "have three quarters of their points up to",
}


def incomparable(
    rule: MetricRule,
    scale: HarmScale,
    baseline: Sequence[Reading],
    candidate: Sequence[Reading],
    unread: Sequence[Run] = (),
) -> str:
    """Why the numbers of these readings (at least one per side) do not compare, as they cover different parts of a
    training, in one clause; '' if they do. `unread`: the runs that gave no number.

    A training's way is counted in steps or, where every run tells how many it makes on each rollout, in rollouts: a
    policy that passes over its answers more often has seen no more of them."""
    everyone = [*baseline, *candidate]
    why = _incomparable(rule, scale, everyone, [run.last_step for run in unread], "steps")
    runs = [*(reading.run for reading in everyone), *unread]
    if not why or not all(math.isfinite(run.updates) for run in runs):
        return why
    ends = [math.ceil(run.last_step / run.updates) for run in unread]
    return _incomparable(rule, scale, [reading.in_rollouts for reading in everyone], ends, "rollouts")


def _incomparable(
    rule: MetricRule, scale: HarmScale, everyone: Sequence[Reading], unread: Sequence[int], what: str
) -> str:
    """As `incomparable`, with the way counted in `what`; `unread`: where the runs without a number ended."""
    longest = max(reading.last_step for reading in everyone)
    too_early = [end for end in unread if end < (1 - EDGE) * longest]
    if rule.must_have and too_early:
        where = _apart(1.0, [min(too_early), longest], what)
        return f"the runs {where}: if one failed, what is recorded of it must say so"
    summary, label, where = SUMMARIES[rule.reduction], rule.info.label, ""
    if summary.single and summary.of_progress:  # evaluations, made at different distances from the start
        where = _other_end(everyone, too_early, what)
    elif not summary.single:
        where = _other_part(everyone, too_early, longest, what)
    if where and summary.of_progress:
        return f"the runs {where}, so {label} is not comparable"
    if where and not rule.info.repeatable and any(_changes(rule, scale, reading) for reading in everyone):
        return f"the runs {where}, and {label} changes on the way, so it is not comparable"
    return ""


def unread(runs: Sequence[Run], readings: Sequence[Reading]) -> list[Run]:
    """The runs without a reading: one that ended too early to give one has not got as far either."""
    read_ids = {reading.run.run_id for reading in readings}
    return [run for run in runs if run.run_id not in read_ids and run.last_step > 0]


def _other_end(readings: Sequence[Reading], too_early: Sequence[int], what: str) -> str:
    """Where the last points lie, if that is at different distances from the start."""
    ends = [*too_early, *(int(reading.series.steps[-1]) for reading in readings)]
    return _apart(1.0, ends, what) if min(ends) < (1 - EDGE) * max(ends) else ""


def _other_part(readings: Sequence[Reading], too_early: Sequence[int], longest: float, what: str) -> str:
    """Why runs do not compare whose points lie at different steps: runs of different lengths, files that begin where a
    run was resumed or lack its middle, a logging interval that changed on the way."""
    steps = [reading.series.steps[reading.series.finite].astype(float) for reading in readings]
    spacings = [reading.series.spacing for reading in readings if len(reading.series.steps) > 1]
    most = max([EDGE * longest, *spacings])  # points lie no closer than this
    for place in _PLACES:
        found = [float(each[round(place * (len(each) - 1))]) for each in steps]
        found += [float(end) for end in too_early if place == 1.0]
        if max(found) - min(found) > most:
            return _apart(place, found, what)
    return ""


def _apart(place: float, found: Sequence[float], what: str) -> str:
    return f"{_PLACES[place]} different {what} ({min(found):.0f} and {max(found):.0f})"


def _changes(rule: MetricRule, scale: HarmScale, reading: Reading) -> bool:
    """Whether a run's level moves by more than half a margin from its first third to its last."""
    series = reading.series
    values = series.values[reading.warmup :][series.finite[reading.warmup :]]
    third = max(1, len(values) // 3)
    early, late = float(iqm(values[:third])), float(iqm(values[-third:]))
    relative = scale.relative or SUMMARIES[rule.reduction].logarithmic
    return abs(late - early) > scale.margin / 2 * (min(abs(early), abs(late)) if relative else 1.0)


def up_to_shared_end(
    baseline: Sequence[Run], candidate: Sequence[Run]
) -> tuple[tuple[list[Run], list[Run]], int] | None:
    """Both sides up to the last step that all their runs reached, and that step: for trainings that end by what they
    have learned (early stopping, a target), each run at another step.

    None if the training does not end by itself: then the baseline's own runs end at the same step. None too if a run of
    the candidate ends where none of the baseline's does: it would choose what is compared, or it trains longer; and if
    what is shared is not most of a training.
    """
    left, right = ([run.last_step for run in side] for side in (baseline, candidate))
    by_itself = min(left) < (1 - EDGE) * max(left)
    alike = min(right) >= (1 - EDGE) * min(left) and (1 - EDGE) * max(right) <= max(left)
    shared = min(*left, *right)
    if not (by_itself and alike and 2 * shared >= max(*left, *right)):
        return None
    return ([_up_to(run, shared) for run in baseline], [_up_to(run, shared) for run in candidate]), shared


def _up_to(run: Run, last: int) -> Run:
    def head(series: Series) -> Series:
        keep = series.steps <= last
        return replace(series, steps=series.steps[keep], values=series.values[keep])

    return replace(run, last_step=last, series={name: head(series) for name, series in run.series.items()})
