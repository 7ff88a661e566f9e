"""Durations on the training's device, without making it wait while it works."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch


class Stopwatch:
    """Adds up named stretches of time.

    On CUDA a call returns before its kernels have run, so stretches are kept as pairs of events in the stream and all
    read at the end of the step.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._open: dict[str, Any] = {}
        self._pairs: dict[str, list[tuple[Any, Any]]] = defaultdict(list)

    def begin(self, name: str) -> None:
        """Begin a stretch; one that is already open restarts."""
        self._open[name] = self._mark()

    def end(self, name: str) -> None:
        """End the open stretch of this name, if there is one."""
        began = self._open.pop(name, None)
        if began is not None:
            self._pairs[name].append((began, self._mark()))

    def lap(self) -> dict[str, float]:
        """Seconds by name since the last lap."""
        pairs, self._pairs = self._pairs, defaultdict(list)
        self._open.clear()
        if self._cuda and pairs:
            torch.cuda.synchronize()  # Transformers reads the loss at this point, which waits as well
            return {
                name: sum(one.elapsed_time(two) for one, two in stretches) / 1000 for name, stretches in pairs.items()
            }
        return {name: sum(two - one for one, two in stretches) for name, stretches in pairs.items()}

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
