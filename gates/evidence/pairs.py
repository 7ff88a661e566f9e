"""Runs of both sides that were made side by side: a machine that is slower today is slower for both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass

from gates.evidence.validity import invalid_clocks
from gates.model.policy import Policy
from gates.model.records import Run, Version
from gates.model.rules import MetricRule
from gates.model.sides import Side, baseline_side
from gates.model.summaries import SUMMARIES
from gates.model.wording import called

LEAST = 2  # pairs; a single one says nothing about the spread between pairs


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Fresh baseline runs and the candidate's with the same seeds, in the order of seeds; empty if too few are valid.

    `made`: all fresh runs that are evidence. `left_out`: why some of them take no part. `alone`: the candidate's runs
    that would count if a fresh run had been made beside them. `together`: the baseline's stored runs, too, were made
    beside the candidate's, as `canary ab` makes them.
    """

    baseline: tuple[Run, ...] = ()
    candidate: tuple[Run, ...] = ()
    made: tuple[Run, ...] = ()
    left_out: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    together: bool = False

    def __bool__(self) -> bool:
        return bool(self.baseline)

    @property
    def beside(self) -> tuple[Run, ...]:
        """The fresh runs that take part: none if there are too few pairs."""
        return self.made if self else ()


def pair(policy: Policy, baseline: Version | None, candidate: Side) -> Pairs:
    """The valid pairs of a comparison, from the seeds that each side has exactly once."""
    side = baseline_side(Version(model="", version=None, runs=baseline.fresh if baseline else ()), candidate)
    invalid = invalid_clocks(policy, side.finished, candidate.finished)
    left, right = (_alone_with_their_seed(runs, invalid) for runs in (side.finished, candidate.finished))
    seeds = sorted(left.keys() & right.keys())
    paired = {right[seed].run_id for seed in seeds}
    enough = len(seeds) >= LEAST
    slow = [
        f"{called(run.run_id, run.seed)}: it {invalid[run.run_id].seen}"
        for run in side.finished
        if run.run_id in invalid
    ]
    return Pairs(
        baseline=tuple(left[seed] for seed in seeds) if enough else (),
        candidate=tuple(right[seed] for seed in seeds) if enough else (),
        made=side.finished,
        together=baseline is not None and baseline.beside,
        left_out=(*side.left_out, *slow),
        alone=tuple(
            called(run.run_id, run.seed)
            for run in candidate.finished
            if enough and run.run_id not in paired and run.run_id not in invalid
        ),
    )


def _alone_with_their_seed(runs: Iterable[Run], invalid: Container[str]) -> dict[int, Run]:
    """The valid runs whose seed no other valid run has: of two, only the name would decide which one is paired."""
    valid = [run for run in runs if run.seed is not None and run.run_id not in invalid]
    once = Counter(run.seed for run in valid)
    return {run.seed: run for run in valid if run.seed is not None and once[run.seed] == 1}


def judged_in_pairs(rule: MetricRule) -> bool:
    """Whether a rule looks at the level of the machine's speed."""
    return rule.info.speed and not SUMMARIES[rule.reduction].logarithmic
