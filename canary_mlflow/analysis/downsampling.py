"""Long series in no more points than a screen has, keeping the lowest and highest value of every stretch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Steps = NDArray[np.int64]
Values = NDArray[np.float64]


def keep_peaks(steps: Steps, values: Values, most: int) -> tuple[Steps, Values]:
    """At most `most` (at least 4) of the points, in order: the first, the last, and the lowest and highest of each of
    several equal stretches. Values are finite."""
    n = len(values)
    if n <= most:
        return steps, values
    stretches = (most - 2) // 2
    edges = np.linspace(0, n, stretches + 1).astype(np.int64)
    kept = {0, n - 1}
    for start, end in pairwise(edges):
        part = values[start:end]
        kept.update((int(start + part.argmin()), int(start + part.argmax())))
    at = np.array(sorted(kept))
    return steps[at], values[at]


def keep_envelope(steps: Steps, low: Values, high: Values, most: int) -> tuple[Steps, Values, Values]:
    """At most `most` stretches of a band, each with its lowest low and its highest high, at its first step."""
    n = len(steps)
    if n <= most:
        return steps, low, high
    starts = np.linspace(0, n, most, endpoint=False).astype(np.int64)
    return steps[starts], np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)


def keep_means(steps: Steps, values: Values, most: int) -> tuple[Steps, Values, Values, Values]:
    """(steps, means, lowest, highest) of at most `most` stretches, each at its last step. The last value is a stretch
    by itself. Values are finite, and more than `most`."""
    starts = np.append(np.linspace(0, len(values) - 1, most - 1, endpoint=False).astype(np.int64), len(values) - 1)
    counts = np.diff(np.append(starts, len(values)))
    mean = np.add.reduceat(values, starts) / counts
    return (
        steps[starts + counts - 1],
        mean,
        np.minimum.reduceat(values, starts),
        np.maximum.reduceat(values, starts),
    )
