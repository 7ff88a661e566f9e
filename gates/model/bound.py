"""What a step waits for: the host, whose speed its neighbours change, or the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import numpy as np

from gates.model.records import Run

IDLE = 50.0
"""GPU utilization in %: below it the GPU waits for the host most of the time. Trainings of a tiny model had 4 to 14 on
an H200 (docs/gpu.md), and its steps took 25 % longer in some sessions than in others, as its host was busy."""
COMPUTES = 0.9
"""Share of a step's time that the host computes: one that sleeps, or waits for a disk, is judged by the clock."""


class Bound(StrEnum):
    """What a step waits for."""

    HOST = "host"
    DEVICE = "device"


def bound_of(hardware: Mapping[str, str]) -> dict[str, str]:
    """The fact `bound`, by the hardware alone: on a CPU the host is the device. Empty if the hardware is not known."""
    backend = hardware.get("backend", "").lower()
    return {"bound": Bound.HOST if backend == "cpu" else Bound.DEVICE} if backend else {}


def all_host_bound(runs: Iterable[Run]) -> bool:
    """Whether each run waits for its host and computes there; false without runs."""
    found = [_host_bound(run) for run in runs]
    return bool(found) and all(found)


def _host_bound(run: Run) -> bool:
    if run.hardware.get("backend") == "cpu":
        return True
    used, wall, cpu = (run.finite(name) for name in ("gpu_utilization", "step_time", "step_cpu_time"))
    if not (len(used) and len(wall) and len(cpu)):
        return False
    return bool(np.mean(used) < IDLE and np.median(cpu) >= COMPUTES * np.median(wall))
