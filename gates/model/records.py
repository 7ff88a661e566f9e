"""The values that are judged: a metric over the steps of one run, a run, and a model version with its
runs."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from canary_mlflow.gates.model.metrics import metrics_with

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
    """

    model: str
    version: str | None
    runs: tuple[Run, ...]
    fresh: tuple[Run, ...] = ()
    beside: bool = False
