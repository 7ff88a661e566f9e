"""NaN and infinities in a run: each is a fault, except the first overflows, by which fp16 finds its loss scale."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from gates.model.metrics import metrics_with
from gates.model.policy import Policy
from gates.model.records import Run, Series

_COUNT = "nonfinite"
_NEVER_NAN = metrics_with("never_nan")
OVERFLOWS = 3
"""fp16's loss scaling begins at 2**16 and halves after each overflow, which makes that step's gradient norm infinite
and moves no weight (torch.amp.GradScaler); the watch calls as many benign."""


def nonfinite(policy: Policy, runs: Sequence[Run]) -> tuple[list[str], str]:
    """What each failing run did, and the sentence for the case that none failed."""
    benign = [scale_search(run) for run in runs]
    problems = []
    for run, steps in zip(runs, benign, strict=True):
        where = _first(run, steps)
        if run.nan_steps + run.inf_steps > len(steps) or where:
            counts = [(run.nan_steps, "NaN"), (run.inf_steps, "Inf")]
            kinds = " and ".join(f"{count} {kind}" for count, kind in counts if count)
            problems.append(f"{kinds or 'non-finite'} steps" + (f", first {where}" if where else ""))
    if any(benign):
        return problems, "no NaN or Inf but in the first gradient norms, by which fp16 finds its loss scale"
    return problems, "no NaN or Inf at any step"


def scale_search(run: Run) -> frozenset[int]:
    """The first steps of a run at which only the gradient norm is not finite; empty if they are too many, or if the run
    says that it does not train in fp16."""
    norms = run.series.get("grad_norm")
    if norms is None or not norms.finite.any() or run.workload.get("precision", "fp16") != "fp16":
        return frozenset()
    steps = frozenset(int(step) for step in norms.steps[: np.argmax(norms.finite)])
    others = {step for name in _NEVER_NAN if name != "grad_norm" for step in _bad(run, name)}
    return steps if len(steps) <= OVERFLOWS and steps.isdisjoint(others) else frozenset()


def _bad(run: Run, name: str) -> list[int]:
    series = run.series.get(name)
    return [] if series is None else [int(step) for step in series.steps[_mask(series)]]


def _mask(series: Series) -> NDArray[np.bool_]:
    return np.asarray(series.values > 0) if series.name == _COUNT else ~series.finite


def _first(run: Run, benign: Collection[int]) -> str:
    """'at step 12 (loss)': the earliest non-finite value, by a count of them or in a metric that is never undefined."""
    names = (_COUNT, *_NEVER_NAN)
    found = [(step, name == _COUNT, name) for name in names for step in _bad(run, name) if step not in benign]
    if not found:
        return ""
    step, counted, name = min(found)
    return f"at step {step}" + ("" if counted else f" ({name})")
