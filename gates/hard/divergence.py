"""Whether a run that learns from examples ended far above where it had been. What comes and goes on the way is left to
the watch, and so is learning from rewards, whose loss is scaled by its own advantages."""

from __future__ import annotations

import numpy as np

from gates.model.paradigm import Paradigm, paradigm_of
from gates.model.records import Run
from gates.model.summaries import Values, iqm
from gates.model.wording import figure

RISE = 1.5
"""A loss has diverged that ends so many times as high as its lowest level was, if it lost half of what it had gained"""

SIGMAS = 5.0
"""and stands so many standard deviations out of its own noise."""

PARTS = 33
"""A level is that of one of so many parts of a run, of ten values at least: of fewer, with small batches, it is luck,
and one part says nothing. The end is the last level, or as many values as a part has, three at least, that are all so
high."""


def divergence(run: Run) -> str | None:
    """What went wrong, in one clause; '' if nothing did, None if the run has no loss that could tell."""
    series = run.series.get("loss")
    if series is None or paradigm_of(run.workload.get("algo", ""), run.series.keys()) is Paradigm.REINFORCEMENT:
        return None
    loss = series.finite_only().values
    parts = min(PARTS, len(loss) // 10)
    return _ends_high(loss, parts) if parts > 1 else None


def _ends_high(loss: Values, parts: int) -> str:
    if np.min(loss) <= 0:
        return ""  # no factor tells how far up that is
    windows = np.array_split(loss, parts)
    levels = [float(iqm(part)) for part in windows]
    last = max(3, len(loss) // PARTS)
    # In logarithms, as a loss wobbles in proportion to itself; of neighbours, as a trend is not noise.
    noise = float(np.std(np.diff(np.log(loss[:-last]))))
    lowest = min(levels)
    for end, values in ((levels[-1], len(windows[-1])), (float(np.min(loss[-last:])), 1)):
        far = np.log(end / lowest) > max(np.log(RISE), SIGMAS * noise / np.sqrt(values))
        if far and end - lowest > (levels[0] - lowest) / 2:
            return f"loss ended at {figure(end)}, from {figure(lowest)}, over {RISE:g} times"
    return ""
