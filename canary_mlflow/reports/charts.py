"""What a chart shows: curves of runs, the champion's band, warnings, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Steps = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """One series of one run, finite values only. `name`: canonical. `run`: the run's display name."""

    name: str
    label: str
    run: str
    steps: Steps
    values: Values


@dataclass(frozen=True, kw_only=True, eq=False)
class Range:
    """The lowest and highest value at each step: the champion's, or a mean minus and plus one spread."""

    steps: Steps
    low: Values
    high: Values


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A warning on a chart."""

    step: int
    stream: str
    level: str
    run: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Chart:
    """One picture. `slug`: its name as a file. `said`: sentences about what no curve can show.

    `around`: (run, the spread around its first series), if the panel has one.
    """

    title: str
    slug: str
    unit: str
    log: bool = False
    target: float | None = None
    curves: Sequence[Curve] = ()
    band: Range | None = None
    around: Sequence[tuple[str, Range]] = ()
    marks: Sequence[Mark] = ()
    said: Sequence[str] = ()
