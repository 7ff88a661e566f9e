"""The band of several runs' curves, and what is said of a curve that is not all numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from canary_mlflow.analysis.downsampling import Steps, Values, keep_envelope
from gates.model.records import Series

BAND = 400  # points of the champion's band


@dataclass(frozen=True, kw_only=True)
class Band:
    """The lowest and highest value of several runs at each step."""

    steps: Steps
    low: Values
    high: Values

    def at(self, step: int) -> tuple[float, float] | None:
        """(low, high) at a step, or in the stretch that contains it; None beyond the band's ends."""
        where = int(np.searchsorted(self.steps, step, side="right")) - 1
        if where < 0 or step > int(self.steps[-1]) + (int(self.steps[-1]) - int(self.steps[0])) // len(self.steps):
            return None
        return float(self.low[where]), float(self.high[where])


def envelope(series: Sequence[Series]) -> Band:
    """The lowest and highest value of several series at each step that any of them has, as small as a screen needs."""
    steps, low, high = keep_envelope(*raw_envelope(series), BAND)
    return Band(steps=steps, low=low, high=high)


def raw_envelope(series: Sequence[Series]) -> tuple[Steps, Values, Values]:
    """Steps, lowest and highest values, every step."""
    finite = [one.finite_only() for one in series]
    steps = np.unique(np.concatenate([one.steps for one in finite]))
    low, high = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    for one in finite:
        at = np.searchsorted(steps, one.steps)
        low[at] = np.minimum(low[at], one.values)
        high[at] = np.maximum(high[at], one.values)
    return steps, low, high


def said_of(broken: int, all_of_them: int, first: int) -> str:
    """The sentence under a chart whose series is not all numbers."""
    if broken == all_of_them:
        return f"No finite number in {all_of_them} values (NaN or infinity), from step {first} on."
    return f"{broken} of {all_of_them} values are NaN or infinity, the first at step {first}."
