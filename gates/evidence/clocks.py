"""Runs whose clock tells about the machine instead of the code; and runs of both sides that were made side by side, as
a machine that is slower today is slower for both.

The sentinel, a fixed kernel timed beside the steps, does not depend on the code. A run in which it is slow, compared
with the quieter side, is not judged by the clock.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from canary_mlflow.gates.model.policy import FreshBaseline, Policy
from canary_mlflow.gates.model.records import SUMMARIES, Run, Version
from canary_mlflow.gates.model.rules import MetricRule
from canary_mlflow.gates.model.sides import Side, baseline_side
from canary_mlflow.gates.model.wording import quantity
from canary_mlflow.gates.stats.power import LEAST_TO_BLOCK

LONGER = 0.1
"""By how much a larger share of its time one side stands in line for a core, from which on that may be why its steps
cost more (it computes with a cache that others have used); or is between its steps, from which on a reader is told."""
SURROUNDINGS = 1.25
"""What standing in line may do to a cost, and another day to a time, as a factor: with six busy processes on two cores,
the steps of a LoRA training of a tiny model cost 21 to 24 % more, those of a model four times as wide no more."""


Reasons = dict[str, str]
"""Run id → what was seen of the machine, as a clause that begins with a verb."""


def contended(policy: Policy, baseline: Sequence[Run], candidate: Sequence[Run]) -> Reasons:
    """The runs of both sides whose clock does not count."""
    rise, sides = policy.validity.sentinel_rise, [_sentinels(policy, side) for side in (baseline, candidate)]
    if rise is None or not all(sides) or len({run.meaning("sentinel_time") for run in (*baseline, *candidate)}) > 1:
        return {}
    quiet = min(median(side.values()) for side in sides)
    return {
        run_id: f"ran a fixed kernel in {quantity(value, 's')}, against {quantity(quiet, 's')} where it was quiet"
        for side in sides
        for run_id, value in side.items()
        if value > (1 + rise) * quiet
    }


def _sentinels(policy: Policy, side: Sequence[Run]) -> dict[str, float]:
    """Run id → the kernel's time after warm-up, for the runs where it is above zero."""
    found = {}
    for run in side:
        series = run.series.get("sentinel_time")
        value = np.nan if series is None else SUMMARIES["iqm"](series, policy.warmup_steps)
        if np.isfinite(value) and value > 0:
            found[run.run_id] = float(value)
    return found


def crowded(rule: MetricRule, warmup_steps: int, usual: Sequence[Run], other: Sequence[Run]) -> str:
    """What the other side's steps did, as a clause, if they stood in line for a core so much more than the usual ones
    that their cost may be the neighbours'; "" if not, if a rule looks at no CPU time of steps, or a run has none."""
    if not rule.info.speed or rule.info.wall_clock or rule.info.least:
        return ""
    grows = SUMMARIES[rule.reduction].logarithmic
    found = [[_in_line(run, warmup_steps, grows) for run in side] for side in (usual, other)]
    sides = [[share for share in side if share is not None] for side in found]
    before, now = (float(np.mean(side)) if side else np.nan for side in sides)
    if not now > before + LONGER:
        return ""
    if grows:
        more = f"by {100 * (now - before):.0f} % of its steps' time"
        return f"stood in line for a core at its end and not at its start, {more} more than the other side"
    return f"stood in line for a core for {100 * now:.0f} % of its steps' time, the other side for {100 * before:.0f} %"


def excuse(policy: Policy, rule: MetricRule, baseline: Sequence[Run], candidate: Sequence[Run], beside: bool) -> str:
    """What may have slowed the candidate down instead of its code, as a clause; "" if nothing is known to: standing in
    line, or another session where the policy asks for fresh runs `beside` the candidate's."""
    days = [{run.session for run in side} for side in (baseline, candidate)]
    apart = "" not in set.union(*days) and days[0].isdisjoint(days[1])
    timed = rule.info.wall_clock and judged_in_pairs(rule)
    if apart and timed and not beside and policy.looks.fresh_baseline is not FreshBaseline.NEVER:
        return "was made in another session, without fresh runs of the baseline"
    return crowded(rule, policy.warmup_steps, baseline, candidate)


def _in_line(run: Run, warmup_steps: int, grows: bool) -> float | None:
    """The share of a run's steps in which it neither computed nor waited; `grows`: by how much more of the last third
    than of the first. None of a run that is too short, NaN where it does not tell. 0 where threads compute side by
    side: how long each of them stood in line is not known."""
    told = [run.series[name].values for name in ("step_time", "step_cpu_time", "step_wait") if name in run.series]
    if len(told) < 3 or len({len(values) for values in told}) > 1:
        return np.nan
    wall, *busy = (values[warmup_steps:] for values in told)
    third = len(wall) // 3
    if not third:
        return None
    shares = [
        float(np.maximum(0.0, 1.0 - np.sum(busy, axis=0)[part].sum() / max(wall[part].sum(), sys.float_info.min)))
        for part in ((slice(-third, None), slice(third)) if grows else (slice(None),))
    ]
    return shares[0] - shares[1] if grows else shares[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Fresh baseline runs and the candidate's with the same seeds, in the order of seeds; empty if too few are valid.

    `fresh`: all fresh runs that are evidence. `invalid`: the runs of the whole comparison whose clock does not count.
    `left_out`: why some fresh runs take no part. `unpaired`: the candidate's runs that would count if a fresh run
    had been made beside them. `together`: the baseline's stored runs, too, were made beside the candidate's, as by
    `canary ab`.
    """

    baseline: tuple[Run, ...] = ()
    candidate: tuple[Run, ...] = ()
    fresh: tuple[Run, ...] = ()
    invalid: Reasons = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    unpaired: tuple[str, ...] = ()
    together: bool = False

    def __bool__(self) -> bool:
        return bool(self.baseline)

    @property
    def used(self) -> tuple[Run, ...]:
        """The fresh runs that take part: none if there are too few pairs."""
        return self.fresh if self else ()


def pair(policy: Policy, baseline: Version | None, stored: Side, candidate: Side) -> Pairs:
    """The valid pairs of a comparison, from the seeds that each side has exactly once. With pairs, the clocks of the
    candidate's runs are compared with the fresh ones', and those of the baseline's `stored` runs with each other. A
    policy that never asks for fresh runs takes none: those beside an exception only say whether they broke off too."""
    wanted = baseline is not None and policy.looks.fresh_baseline is not FreshBaseline.NEVER
    side = baseline_side(baseline.fresh if baseline and wanted else (), candidate)
    invalid = contended(policy, side.finished, candidate.finished)
    left, right = (_by_unshared_seed(runs, invalid) for runs in (side.finished, candidate.finished))
    seeds = sorted(left.keys() & right.keys())
    paired = {right[seed].run_id for seed in seeds}
    enough = len(seeds) >= LEAST_TO_BLOCK
    of_stored = contended(policy, stored.finished, stored.finished if enough else candidate.finished)
    slow = [f"{run.called}: it {invalid[run.run_id]}" for run in side.finished if run.run_id in invalid]
    return Pairs(
        baseline=tuple(left[seed] for seed in seeds) if enough else (),
        candidate=tuple(right[seed] for seed in seeds) if enough else (),
        fresh=side.finished,
        invalid=invalid | of_stored if enough else of_stored,
        together=baseline is not None and baseline.beside,
        left_out=(*side.left_out, *slow),
        unpaired=tuple(
            run.called
            for run in candidate.finished
            if enough and run.run_id not in paired and run.run_id not in invalid
        ),
    )


def _by_unshared_seed(runs: Iterable[Run], invalid: Container[str]) -> dict[int, Run]:
    """The valid runs whose seed no other valid run has: of two, only the name would decide which one is paired."""
    valid = [run for run in runs if run.seed is not None and run.run_id not in invalid]
    once = Counter(run.seed for run in valid)
    return {run.seed: run for run in valid if run.seed is not None and once[run.seed] == 1}


def judged_in_pairs(rule: MetricRule) -> bool:
    """Whether a rule looks at the level of the machine's speed."""
    return rule.info.speed and not SUMMARIES[rule.reduction].logarithmic
