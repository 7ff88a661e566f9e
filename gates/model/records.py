"""The values that are judged: a metric over the steps of one run, with the one number that it becomes, a run, and a
model version with its runs.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from canary_mlflow.gates.model.items import Evaluated
from canary_mlflow.gates.model.metrics import MEANING, metrics_with

Values = NDArray[np.float64]
Statistic = Callable[[Values], Values]
"""Values of shape (..., n), n at least 1, to numbers of shape (...)."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A way to reduce a series: the window of values that it looks at and the statistic taken there.

    `logarithmic` statistics are already logarithms of ratios, so they are judged on the identity scale.
    `single` ones need only one value; all others need the policy's `min_steps` values after warm-up. `of_progress` ones
    depend on how far a run has come, so they compare only runs of the same length. With fewer than `decides_from`
    values after warm-up, the number is too noisy to gate by and is only advice; with fewer than `guards_from`, a guard
    does not block by it either.
    """

    window: Callable[[Values, int], Values]
    statistic: Statistic
    logarithmic: bool = False
    single: bool = False
    of_progress: bool = False
    decides_from: int = 0
    guards_from: int = 0

    def __call__(self, series: Series, warmup_steps: int) -> float:
        """The run's number, in the metric's unit; NaN when no finite value is left in the window."""
        values = self.values(series, warmup_steps)
        return float(self.statistic(values)) if len(values) else math.nan

    def values(self, series: Series, warmup_steps: int) -> Values:
        """The finite values that the statistic sees. `warmup_steps` counts points of the series, not step numbers."""
        seen = self.window(series.values, warmup_steps)
        keep = np.isfinite(seen) & (np.abs(seen) < np.finfo(np.float64).max)
        return np.asarray(seen[keep])


def everything(values: Values, warmup_steps: int) -> Values:
    """All values: for peaks, which may happen while warming up, and for values measured once."""
    return values


def after_warmup(values: Values, warmup_steps: int) -> Values:
    return values[warmup_steps:]


SET_UP, MOST_SET_UP = 2.0, 0.25
"""First steps each of which takes this many times a run's middle are set-up (a compiler's), if they are no more than
this share of the run."""


def after_set_up(values: Values, warmup_steps: int) -> Values:
    """Without the warm-up and the first steps after it that belong to the set-up."""
    rest = values[warmup_steps:]
    finite = rest[np.isfinite(rest)]
    usual = ~(rest > SET_UP * np.median(finite)) if len(finite) else np.ones(len(rest), bool)
    first = int(np.argmax(usual)) if len(rest) else 0
    return rest[first:] if warmup_steps + first <= MOST_SET_UP * len(values) else rest


def last_half(values: Values, warmup_steps: int) -> Values:
    """The second half of the run, without any warm-up."""
    return values[max(warmup_steps, len(values) // 2) :]


def iqm(values: Values) -> Values:
    """Interquartile mean: the mean of the middle half. The most precise measure of location here; blind to spikes."""
    return _trimmed(values, values.shape[-1] // 4)


def trimmed_mean(values: Values) -> Values:
    """Mean without the lowest and the highest tenth."""
    return _trimmed(values, values.shape[-1] // 10)


def tail_excess(values: Values) -> Values:
    """log(mean / IQM): how much rare slow steps add. Independent of the host's speed."""
    return _log_ratio(_mean(values), iqm(values))


def drift(values: Values) -> Values:
    """log(IQM of the last third / IQM of the first): does the run get slower? Independent of the host's speed."""
    third = max(1, values.shape[-1] // 3)
    return _log_ratio(iqm(values[..., -third:]), iqm(values[..., :third]))


def _trimmed(values: Values, cut: int) -> Values:
    return _mean(np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut])


def _log_ratio(above: Values, below: Values) -> Values:
    """log(above / below); NaN where one of the two is not positive."""
    positive = (above > 0) & (below > 0)
    return np.asarray(np.log(np.where(positive, above, np.nan)) - np.log(np.where(positive, below, np.nan)))


def _mean(values: Values) -> Values:
    # Not np.mean, which takes three times as long on the short arrays that batches are.
    return np.asarray(np.add.reduce(values, axis=-1) / values.shape[-1])


SUMMARIES: dict[str, Summary] = {
    "iqm": Summary(window=after_warmup, statistic=iqm),
    "median": Summary(window=after_warmup, statistic=partial(np.median, axis=-1)),
    "mean": Summary(window=after_warmup, statistic=_mean),
    "tail_mean": Summary(window=last_half, statistic=_mean, of_progress=True),
    "tail_area": Summary(window=last_half, statistic=trimmed_mean, of_progress=True),
    "tail_excess": Summary(window=after_warmup, statistic=tail_excess, logarithmic=True, decides_from=300),
    "drift": Summary(window=after_warmup, statistic=drift, logarithmic=True, decides_from=300, guards_from=60),
    "whole": Summary(window=everything, statistic=_mean),
    "steady": Summary(window=after_set_up, statistic=_mean),
    "max": Summary(window=everything, statistic=partial(np.max, axis=-1), single=True),
    "sum": Summary(window=everything, statistic=partial(np.add.reduce, axis=-1), single=True),
    "last": Summary(window=everything, statistic=lambda values: values[..., -1], single=True, of_progress=True),
    # The mean of tokens-per-second per step over-weights fast steps; see `rate`.
    "rate": Summary(window=after_warmup, statistic=_mean),
    "per_token": Summary(window=after_warmup, statistic=_mean),
}


def rate(amounts: Series, times: Series, warmup_steps: int) -> Series:
    """A run's true rate per point, sum(amounts) / sum(times), as a series whose mean is that rate.

    Each point is amount_i * n / sum(times), so batch means of it describe the spread of the counted amounts.
    Steps that only one of the two series has are left out.
    """
    steps, here, there = np.intersect1d(amounts.steps, times.steps, return_indices=True)
    counted, seconds = amounts.values[here], times.values[there]
    total = float(np.sum(seconds[warmup_steps:]))
    n = len(seconds[warmup_steps:])
    scaled = counted * (n / total) if total > 0 else np.full(len(counted), math.nan)
    return Series(name="rate", steps=steps, values=scaled)


WITHIN_NOISE = "improved by no more than its noise"
"""How a `learned_reason` says of a run that it got better, and that chance may be why."""
_ID = re.compile("[0-9a-f]{32}")  # of a run in MLflow
EDGE = 0.1
"""The share of a run that counts as its edge: what stands in the first is its start, a series that reaches the last
goes on to its end, and runs that end so close to each other are equally long. With eval_steps=200 of 500 the last
evaluation stands at 400, and knows nothing of a collapse after it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """One metric of one run: `steps` (int, strictly rising) and `values` (float), two 1-d arrays of equal
    length."""

    name: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    @classmethod
    def from_pairs(cls, name: str, pairs: Iterable[tuple[int, float]]) -> Series:
        """Make a series from (step, value) pairs in any order; of several values at one step, the last counts."""
        by_step = {int(step): float(value) for step, value in pairs}
        steps = sorted(by_step)
        return cls(
            name=name,
            steps=np.array(steps, dtype=np.int64),
            values=np.array([by_step[step] for step in steps], dtype=np.float64),
        )

    @cached_property
    def finite(self) -> NDArray[np.bool_]:
        """Mask of the finite values. SQL stores turn +-Inf into +-1.797e308, which counts as infinite too."""
        return np.asarray(np.isfinite(self.values) & (np.abs(self.values) < sys.float_info.max))

    def finite_only(self) -> Series:
        """The same series without its non-finite values."""
        keep = self.finite
        return Series(name=self.name, steps=self.steps[keep], values=self.values[keep])

    def reaches(self, share: float, last_step: int) -> bool:
        """True if the series reaches that share of a run that ends at `last_step`."""
        return len(self.steps) > 0 and int(self.steps[-1]) >= share * last_step

    @cached_property
    def spacing(self) -> float:
        """How many steps a point stands for: the median distance of neighbours; 1 if there is no second point."""
        return float(np.median(np.diff(self.steps))) if len(self.steps) > 1 else 1.0

    @cached_property
    def varies(self) -> bool:
        return len(self.values) > 1 and bool((self.values != self.values[0]).any())

    def same_values(self, other: Series) -> bool:
        """True if both hold the same steps and bit-equal values (NaN equals NaN)."""
        return bool(
            np.array_equal(self.steps, other.steps) and np.array_equal(self.values, other.values, equal_nan=True)
        )


def updates_of(series: Mapping[str, Series]) -> float:
    """Optimizer steps on each rollout of a policy, by the distance of the rows that close its iterations; else NaN."""
    held = (series[name] for name in metrics_with("of_iterations") if name in series)
    return next((one.spacing for one in held if len(one.steps) > 1), math.nan)


@dataclass(frozen=True, kw_only=True)
class Raised:
    """The exception that ended a run: its type, the `place` that raised it (`module/path.py:line in function`, the same
    on every machine), and, if it tells nothing about the code, why (`outside`)."""

    kind: str
    place: str
    outside: str = ""

    def __str__(self) -> str:
        return f"{self.kind} at {self.place}" if self.place else self.kind


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One fresh process with one seed: the unit of evidence.

    `invariants`: "ok", "broken: <sentence>", or "" if none were checked. `critical_held`: the warning that stayed
    critical, "" for none, None if the run was not watched. `note`: what a reader should know about its data, in one
    sentence. `not_promotable`: why this run sets no standard for others, such as a fault put in on purpose or a
    profiler; "" for an ordinary run.

    `failure` is "" or one of instability, oom, timeout, crash (a fault of the version), interrupted, error (no
    evidence). `workload` and `hardware` must be equal for two runs to be compared; `environment` and `configuration`
    (what the training was told) may differ, and are listed. `facts`: the run's exact facts, `group.key` → value,
    compared without statistics (gates/facts/exact.py); empty if none were recorded.
    """

    run_id: str
    seed: int | None
    series: Mapping[str, Series]
    completed: bool = True
    failure: str = ""
    failure_reason: str = ""
    raised: Raised | None = None
    learned: bool | None = None
    learned_reason: str = ""
    invariants: str = ""
    critical_held: str | None = None
    not_promotable: str = ""
    nan_steps: int = 0
    inf_steps: int = 0
    workload: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    session: str = ""
    last_step: int = 0
    note: str = ""

    @property
    def finished(self) -> bool:
        """Whether it reached its end."""
        return self.completed and not self.failure

    @property
    def called(self) -> str:
        """How sentences name it: `seed 3` if it is known only by 32 hex digits, `run FILE` for any other."""
        return f"seed {self.seed}" if self.seed is not None and _ID.fullmatch(self.run_id) else f"run {self.run_id}"

    def meaning(self, metric: str) -> str:
        """What it says of a metric that meant something else in earlier versions; '' as in those."""
        return self.environment.get(f"{MEANING}{metric}", "")

    @cached_property
    def updates(self) -> float:
        """As `updates_of` its series."""
        return updates_of(self.series)

    def finite(self, name: str) -> NDArray[np.float64]:
        """The finite values of a series; none if it was not recorded."""
        series = self.series.get(name)
        return np.array([]) if series is None else series.finite_only().values


@dataclass(frozen=True, kw_only=True, eq=False)
class Version:
    """One side of a comparison: a model version (None if the runs are not a registered version) and its runs.

    `fresh`: for a baseline, runs of its code made beside the candidate's, each with the seed of its partner. What
    depends on the machine's speed is judged in these pairs. `beside`: the baseline's own `runs` were made that way too.
    `evals`: what its weights scored on benchmarks.
    """

    model: str
    version: str | None
    runs: tuple[Run, ...]
    fresh: tuple[Run, ...] = ()
    beside: bool = False
    evals: Evaluated = field(default_factory=dict)
