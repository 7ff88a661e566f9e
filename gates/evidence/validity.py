"""Runs whose clock tells about the machine instead of the code: throttled, or contended.

The sentinel, a fixed kernel timed beside the steps, does not depend on the code. A run in which it is slow, compared
with the quieter side, is not judged by the clock. A GPU's clock rate is compared with the side's other runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from gates.model.policy import Policy
from gates.model.records import Run
from gates.model.summaries import SUMMARIES
from gates.model.wording import quantity


class Slow(NamedTuple):
    """Why a run's clock does not count: `what` happened to the run, in a word, and what was `seen`, as a clause that
    begins with a verb."""

    what: str
    seen: str


Reasons = dict[str, Slow]
"""By run id."""


def invalid_clocks(
    policy: Policy, baseline: Sequence[Run], candidate: Sequence[Run], fresh: Sequence[Run] = ()
) -> Reasons:
    """The runs of both sides whose clock does not count. `fresh`: baseline runs made beside the candidate's; if there
    are any, the candidate's runs are compared with these, and the stored runs with each other."""
    if fresh:
        return invalid_clocks(policy, fresh, candidate) | invalid_clocks(policy, baseline, baseline)
    found: Reasons = {}
    if policy.validity.clock_share is not None:
        for side in (baseline, candidate):
            found |= _throttled(policy, policy.validity.clock_share, side)
    if policy.validity.sentinel_rise is not None:
        found |= _slow_sentinels(policy, policy.validity.sentinel_rise, baseline, candidate)
    return found


def superseded(policy: Policy, baseline: Sequence[Run], candidate: Sequence[Run], fresh: Sequence[Run] = ()) -> Reasons:
    """The runs of both sides whose clock does not count and that were repeated with the same seed and a clock that
    does. Their metrics are not judged. Hard checks still see them: a busy neighbour makes no NaN."""
    invalid = invalid_clocks(policy, baseline, candidate, fresh)
    found: Reasons = {}
    for side in (baseline, candidate, fresh):
        again = {run.seed: run.run_id for run in side if run.seed is not None and run.run_id not in invalid}
        for run in side:
            if run.run_id in invalid and run.seed in again:
                slow = invalid[run.run_id]
                found[run.run_id] = slow._replace(seen=f"{slow.seen}; made again as run {again[run.seed]}")
    return found


def _throttled(policy: Policy, share: float, side: Sequence[Run]) -> Reasons:
    clocks = _levels(policy, side, "gpu_clock")
    middle = median(clocks.values()) if clocks else 0.0
    return {
        run_id: Slow("throttled", f"had its GPU at {value:.3g} MHz, the runs beside it at {middle:.3g} MHz")
        for run_id, value in clocks.items()
        if value < share * middle
    }


def _slow_sentinels(policy: Policy, rise: float, baseline: Sequence[Run], candidate: Sequence[Run]) -> Reasons:
    sides = [_levels(policy, side, "sentinel_time") for side in (baseline, candidate)]
    if not all(sides):
        return {}
    reference = min(median(side.values()) for side in sides)
    return {
        run_id: Slow(
            "contended",
            f"ran a fixed kernel in {quantity(value, 's')}, against {quantity(reference, 's')} where it was quiet",
        )
        for side in sides
        for run_id, value in side.items()
        if value > (1 + rise) * reference
    }


def _levels(policy: Policy, side: Sequence[Run], name: str) -> dict[str, float]:
    """Run id → interquartile mean of a metric after warm-up, for the runs where it is above zero."""
    found = {}
    for run in side:
        value = SUMMARIES["iqm"](run.series[name], policy.warmup_steps) if name in run.series else np.nan
        if np.isfinite(value) and value > 0:
            found[run.run_id] = float(value)
    return found
