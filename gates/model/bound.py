"""What a step waits for, which says by which clock it is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np

from canary_mlflow.gates.model.records import Run

IDLE = 50.0
"""GPU utilization in %: below it the GPU waits for the host most of the time. Trainings of a tiny model had 4 to 14 on
an H200 (docs/gpu.md), and its steps took 25 % longer in some sessions than in others, as its host was busy."""
COMPUTES = 0.9
"""Share of a step's time that the host computes: one that sleeps, or waits for a disk, is judged by the clock."""


class Bound(StrEnum):
    """The host's computing, whose speed its neighbours change; the GPU; or something else, such as a disk."""

    HOST = "host"
    DEVICE = "device"
    IO = "io"


def bound_of(hardware: Mapping[str, str]) -> dict[str, str]:
    """The fact `bound`, by the hardware alone: on a CPU the host computes. Empty if the hardware is not known."""
    backend = hardware.get("backend", "").lower()
    return {"bound": Bound.HOST if backend == "cpu" else Bound.DEVICE} if backend else {}


def bound_of_sides(baseline: Sequence[Run], candidate: Sequence[Run]) -> Bound | None:
    """What the steps of both sides wait for, as far as their series tell; None where only the hardware does.

    Half of a side's runs that wait for something else than their host are enough; one among several had a disk that
    stood still for a moment. A candidate that leaves out `step_wait`, which the baseline has, may hide it.
    """
    runs = (*baseline, *candidate)
    backends = {run.hardware.get("backend", "").lower() for run in runs}
    if backends == {"cpu"}:
        told, tells = (["step_wait" in run.series for run in side] for side in (baseline, candidate))
        hidden = any(told) and not all(tells)
        return Bound.IO if hidden or _wait(baseline) or _wait(candidate) else Bound.HOST
    return Bound.HOST if backends == {"cuda"} and all(map(_waits_for_host, runs)) else None


def _wait(runs: Sequence[Run]) -> bool:
    """Whether more than a tenth of the steps' time is waiting, on a CPU."""
    shares = [share for run in runs if (share := _waited(run)) is not None]
    return bool(shares) and 2 * sum(share > 1 - COMPUTES for share in shares) >= len(shares)


def _waited(run: Run) -> float | None:
    """The share of its steps' time that a run waited; None if it does not tell. First steps read libraries from the
    disk."""
    waited, wall = (values[len(values) // 3 :] for values in map(run.finite, ("step_wait", "step_time")))
    return float(np.mean(waited) / np.mean(wall)) if len(waited) and len(wall) else None


def _waits_for_host(run: Run) -> bool:
    """Whether a GPU idles for most of a step while the host computes."""
    used, wall, cpu = (run.finite(name) for name in ("gpu_utilization", "step_time", "step_cpu_time"))
    if not (len(used) and len(wall) and len(cpu)):
        return False
    return bool(np.mean(used) < IDLE and np.median(cpu) >= COMPUTES * np.median(wall))
