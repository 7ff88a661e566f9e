"""Durations on the training's device, without making it wait while it works."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch


class Stopwatch:
    """Adds up named stretches of time.

    On CUDA a call returns before its kernels have run, so stretches are kept as pairs of events in the stream and all
    read at the end of the step.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._mark: Callable[[], Any] = event if self._cuda else time.perf_counter
        self._open: dict[str, Any] = {}
        self._spent: dict[str, float] = {}  # seconds, on a CPU
        self._pairs: dict[str, list[tuple[Any, Any]]] = defaultdict(list)  # of events, on CUDA

    def begin(self, name: str) -> None:
        """Begin a stretch; one that is already open restarts."""
        self._open[name] = self._mark()

    def end(self, name: str, to: str = "") -> None:
        """End the open stretch of this name, if there is one; begin another at the same moment."""
        if not to and name not in self._open:
            return
        now, began = self._mark(), self._open.pop(name, None)
        if to:
            self._open[to] = now
        if began is None:
            return
        if self._cuda:
            self._pairs[name].append((began, now))
        else:
            self._spent[name] = self._spent.get(name, 0.0) + (now - began)

    def lap(self) -> dict[str, float]:
        """Seconds by name since the last lap."""
        self._open.clear()
        if not self._pairs:
            spent, self._spent = self._spent, {}
            return spent
        pairs, self._pairs = self._pairs, defaultdict(list)
        torch.cuda.synchronize()  # Transformers reads the loss at this point, which waits as well
        return {name: sum(one.elapsed_time(two) for one, two in stretches) / 1000 for name, stretches in pairs.items()}


def event() -> Any:
    """A mark in CUDA's stream."""
    made = torch.cuda.Event(enable_timing=True)
    made.record()
    return made
