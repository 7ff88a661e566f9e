"""Peak memory: of the GPU's allocator, or of the process."""

from __future__ import annotations

import resource
import sys
from typing import Any

from canary_mlflow.tracking.probes import Probe, Row, Setting

MIB = 2**20


class Memory(Probe):
    """The highest memory so far, at each step, in MiB.

    On CUDA what torch's allocator gave out and held on this process's device, since training began; else the resident
    set of the process since it started, which is why each run wants a fresh process.
    """

    name = "memory"

    def __init__(self) -> None:
        self._cuda: Any = None

    def start(self, setting: Setting) -> None:
        if setting.device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()
            self._cuda = torch.cuda

    def step_ended(self, row: Row) -> None:
        if self._cuda is None:
            row["peak_memory"] = resident_peak()
            return
        # One call, where max_memory_allocated() and max_memory_reserved() would make it twice.
        stats = self._cuda.memory_stats()
        row["peak_memory"] = stats["allocated_bytes.all.peak"] / MIB
        row["reserved_memory"] = stats["reserved_bytes.all.peak"] / MIB


def resident_peak() -> float:
    """MiB of this process's largest resident set."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (MIB if sys.platform == "darwin" else 1024)  # macOS counts bytes, Linux KiB
