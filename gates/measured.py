"""What both sides' runs measured, reduced to the numbers that the rules of root causes compare."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from canary_mlflow.gates.facts.exact import DRIFT, FROZEN
from canary_mlflow.gates.model.paradigm import Bound, bound_of_sides
from canary_mlflow.gates.model.records import Run, Values

WARMUP = 5
"""First steps, which no level includes."""
TAIL = 0.3
"""The last share of a run, by which its end is judged."""
COSTLIER = 1.08
"""Times a cost: the baseline's, or that before a slowdown set in in mid-run; below, clocks differ by as much."""
DIGESTS = 16**16
"""Digests of token ids are sums over rows, modulo this (canary_mlflow/tracking/describing/data_facts.py)."""


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The runs of both sides. A side's level is the median of its runs' levels."""

    baseline: Sequence[Run]
    candidate: Sequence[Run]

    def has(self, *names: str) -> bool:
        """Whether both sides have runs with each of these series."""
        return all(
            any(name in run.series for run in side) for name in names for side in (self.baseline, self.candidate)
        )

    @property
    def host_bound(self) -> bool:
        """Whether the steps of both sides wait for nothing but their host's computing."""
        return bound_of_sides(self.baseline, self.candidate) is Bound.HOST

    def first(self, *names: str) -> str:
        """The first of these series that both sides have; '' for none."""
        return next(filter(self.has, names), "")

    def each(self, name: str, of: Callable[[Run, str], float]) -> tuple[list[float], list[float]]:
        """The runs' own numbers, as far as they have one: the baseline's, the candidate's."""
        before, now = (
            [value for run in side if math.isfinite(value := of(run, name))] for side in (self.baseline, self.candidate)
        )
        return before, now

    def both(self, of: Callable[..., float], *name: str) -> tuple[float, float]:
        """The median of the runs' numbers, of a series or their own: baseline, candidate; NaN without any."""
        return middle(of(run, *name) for run in self.baseline), middle(of(run, *name) for run in self.candidate)

    def level(self, name: str) -> tuple[float, float]:
        """A series' median step after warm-up."""
        return self.both(steady, name)

    def tail(self, name: str) -> tuple[float, float]:
        """The mean of a series' last third."""
        return self.both(end, name)

    def spread(self, name: str) -> float:
        """The largest distance between the ends of the baseline's runs; 0 for fewer than two runs."""
        ends, _ = self.each(name, end)
        return max(ends) - min(ends) if ends else 0.0

    def apart(self, name: str, of: Callable[[Run, str], float] | None = None, *, below: bool = False) -> bool:
        """Whether each run of the candidate is above (or below) all of the baseline's, by its steady value unless
        said."""
        before, now = self.each(name, of or steady)
        return bool(before and now) and (max(now) < min(before) if below else min(now) > max(before))

    def ratios(self, name: str) -> Values:
        """The candidate's values / the baseline's, step by step, as medians over runs; empty if no step compares."""
        (steps, before), (others, now) = _by_step(self.baseline, name), _by_step(self.candidate, name)
        _, here, there = np.intersect1d(steps, others, assume_unique=True, return_indices=True)
        before, now = before[here], now[there]
        return now[before > 0] / before[before > 0]

    def sets_in(self, name: str) -> tuple[int, float] | None:
        """The step from which every step takes longer, and how many times as long; None if it did so from the start.
        Within a run the machine's speed cancels, and what neighbours stretch is not among a stretch's fastest steps."""
        ratios = self.ratios(name)
        if len(ratios) < 30:
            return None
        around = np.lib.stride_tricks.sliding_window_view(np.pad(ratios, 2, constant_values=np.nan), 5)
        smooth = np.nanmedian(around, axis=1)
        at = WARMUP + _break(smooth[WARMUP:])
        early, late = float(np.median(smooth[WARMUP:at])), float(np.median(smooth[at:]))
        before, now = self.each(name, lambda run, name: _rise(run, name, at))
        clear = bool(before and now) and min(now) >= COSTLIER * max(before)
        return (at + 1, late / early) if clear and late >= COSTLIER * early else None


def ratio(pair: tuple[float, float]) -> float:
    """Candidate / baseline; NaN if that tells nothing."""
    before, now = pair
    return now / before if math.isfinite(before) and math.isfinite(now) and before > 0 else math.nan


def middle(values: Iterable[float]) -> float:
    """The median of the finite values; NaN without any."""
    found = [value for value in values if math.isfinite(value)]
    return float(np.median(found)) if found else math.nan


def _number(window: Callable[[Values], Values], statistic: Callable[[Values], Any]) -> Callable[[Run, str], float]:
    """One number of a run's series, by its finite values; NaN without any."""

    def of(run: Run, name: str) -> float:
        values = window(run.finite(name))
        return float(statistic(values)) if len(values) else math.nan

    return of


steady = _number(lambda values: values[WARMUP:] if len(values) > 2 * WARMUP else values, np.median)
mean = _number(lambda values: values[WARMUP:], np.mean)
start = _number(lambda values: values[:1], np.mean)
end = _number(lambda values: values[-max(1, round(TAIL * len(values))) :], np.mean)
highest = _number(lambda values: values, np.max)
"""The median step and the mean after warm-up, the first value, the mean of the last third, and the largest value."""


def updates(run: Run) -> float:
    """Optimizer steps per iteration; NaN for trainings that do not iterate, or whose rows may be iterations."""
    return run.updates if "learning_rate" in run.series else math.nan


def peaks(runs: Sequence[Run]) -> Values:
    """The median run's peak memory so far, step by step."""
    rows = [run.series["peak_memory"].finite_only().values for run in runs if "peak_memory" in run.series]
    length = min(len(row) for row in rows)
    return np.maximum.accumulate(np.median([row[:length] for row in rows], axis=0))


def tokens_of_a_row(run: Run) -> float:
    """Tokens per row that reach the model, without those of an answer that it wrote itself; NaN if not known."""
    found = re.search(r" in (\d+) sequences", run.facts.get("first.tokens", ""))
    answer = steady(run, "response_length") if "response_length" in run.series else 0.0
    return steady(run, "tokens") / int(found[1]) - answer if found and int(found[1]) else math.nan


def token_digests(run: Run) -> dict[str, int]:
    """The digest of each column of token ids in the training data."""
    known = ((re.fullmatch(r"data\.tokens\.(?!held_out\.)(.*)", key), said) for key, said in run.facts.items())
    found = {column[1]: said.split()[-1] for column, said in known if column}
    return {column: int(digest, 16) for column, digest in found.items() if re.fullmatch("[0-9a-f]{16}", digest)}


def by_layer(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Layer → ‖end - start‖ / ‖start‖ of each run that recorded it; 0 where it did not move."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for key, value in run.facts.items():
            if key.startswith(f"{DRIFT}."):
                found.setdefault(key.removeprefix(f"{DRIFT}."), []).append(0.0 if value == FROZEN else float(value))
    return found


def _rise(run: Run, name: str, at: int) -> float:
    """How many times as long the fastest quarter of the steps takes from there on."""
    values = run.finite(name)
    if len(values) <= at:
        return math.nan
    early, late = np.quantile(values[WARMUP:at], 0.25), np.quantile(values[at:], 0.25)
    return float(late / early) if early > 0 else math.nan


def _break(values: Values) -> int:
    """Where values, shape (n,), are best told apart as two levels: the squares around both means are least there. At
    least 5 values lie before it, and 10 from it on.

    What two means take off the sum of squares follows from running sums, for all places at once: to add the squares up
    at each of them took most of a verdict's time.
    """
    count = np.arange(1, len(values))
    before = np.cumsum(values - np.mean(values))[:-1]  # after it, the same with the other sign
    explained = before * before * (1 / count + 1 / (len(values) - count))
    return 5 + int(np.argmax(explained[4 : len(values) - 10]))


def _by_step(runs: Sequence[Run], name: str) -> tuple[NDArray[np.int64], Values]:
    """The steps at which any run has a finite value, and the median of the runs' values there."""
    found = [run.series[name].finite_only() for run in runs if name in run.series]
    if not found:
        return np.array([], dtype=np.int64), np.array([])
    steps, values = (np.concatenate([getattr(one, what) for one in found]) for what in ("steps", "values"))
    order = np.lexsort((values, steps))
    each, first, count = np.unique(steps[order], return_index=True, return_counts=True)
    values = values[order]
    return each, (values[first + (count - 1) // 2] + values[first + count // 2]) / 2
