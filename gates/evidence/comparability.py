"""Series whose numbers do not compare, as they cover different parts of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gates.evidence.readings import HarmScale, Reading
from gates.model.records import EDGE, Run
from gates.model.rules import MetricRule
from gates.model.summaries import SUMMARIES, iqm

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
    """Why the numbers of these readings (at least one per side) do not compare, in one clause; '' if they do.
    `unread`: the runs that gave no number.

    A training's way is counted in steps or, where every run tells how many it makes on each rollout, in rollouts: a
    policy that passes over its answers more often has seen no more of them."""
    everyone = [*baseline, *candidate]
    why = _incomparable(rule, scale, everyone, [run.last_step for run in unread], "steps")
    paces = [*(reading.updates for reading in everyone), *(run.updates for run in unread)]
    if not why or not all(map(math.isfinite, paces)):
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
    read_ids = {reading.run_id for reading in readings}
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
