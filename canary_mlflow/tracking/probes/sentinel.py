"""How fast this host, and its GPU, is right now: fixed kernels, timed beside the steps."""

from __future__ import annotations

import math
import time

import torch

from canary_mlflow.tracking.probes import BEAT, Probe, Row, Setting
from canary_mlflow.tracking.probes.clock import Clock
from canary_mlflow.tracking.probes.phases import Stopwatch

REPEATS = 2  # of the kernel in one timing, and before it, as the first find the caches as the step has left them: what
# was added at a step's end hid a third of itself (docs/measured/costs.md)
SHARE = 0.005  # of the training's time that the kernels take at most in somebody's own script
SIDE, PRODUCTS = 2048, 20  # of the GPU's kernel: 0.3 TFLOP in half precision, 0.52 ms of an H200 (docs/gpu.md)


class Sentinel(Probe):
    """Gives CPU time a unit that neighbours cannot change.

    On a shared CPU the same step takes half as much CPU time again, for seconds or minutes, while a neighbour uses the
    other half of the core; the kernel timed beside it slows down too. `step_cost` and `iteration_cost` are CPU time in
    units of that kernel, on a GPU's host too: small models wait for the host, and not for the GPU. `sentinel_time` is
    the kernel's time; with CUDA that of a second kernel on the GPU, which shows if a side ran throttled as a whole.
    """

    name = "sentinel"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kernel: _Kernel | None = None
        self._gpu: _GPUKernel | None = None
        self._steps = 0
        self._due = BEAT
        self._own = False
        self._latest = 0.0
        self._iterates = False
        self._iteration: list[float] = []

    def start(self, setting: Setting) -> None:
        self._iterates, self._own = setting.iterates, setting.own
        if setting.device not in ("cpu", "cuda"):
            return
        self._kernel, self._gpu = _Kernel(), _GPUKernel() if setting.device == "cuda" else None
        self._kernel.seconds()  # the first call allocates
        if self._gpu:
            self._gpu.seconds()
        self._latest = self._kernel.seconds()
        self._clock.paused(ours=True)

    def listens(self, event: str) -> bool:
        return self._kernel is not None and super().listens(event)

    def step_ended(self, row: Row) -> None:
        if self._kernel is None:
            return
        self._steps += 1
        if self._steps >= self._due:
            began = time.perf_counter()
            self._latest = self._kernel.seconds()
            row["sentinel_time"] = self._gpu.seconds() if self._gpu else self._latest
            self._due = self._steps + self._spacing(time.perf_counter() - began, row.get("step_time", 0.0))
            self._clock.paused(ours=True)
        if self._iterates:
            self._iteration.append(self._latest)

    def _spacing(self, cost: float, step: float) -> int:
        """Steps until the next timing. In a canary the kernels take a percent or more of a run of short steps."""
        return max(BEAT, math.ceil(cost / (SHARE * step))) if self._own and step > 0 else BEAT

    def iteration_ended(self, row: Row) -> None:
        if self._iteration and "iteration_cpu_time" in row:
            row["iteration_cost"] = row["iteration_cpu_time"] * len(self._iteration) / sum(self._iteration)
        self._iteration.clear()

    def row_closed(self, row: Row) -> None:
        if self._kernel is None:
            return
        # A row closes before the next step's sentinel, so the latest timing is the one nearest to it.
        if "step_cpu_time" in row:
            row["step_cost"] = row["step_cpu_time"] / self._latest
        if "iteration_cpu_time" in row and "iteration_cost" not in row:
            row["iteration_cost"] = row["iteration_cpu_time"] / self._latest


class _Kernel:
    """Forward and backward of a small perceptron: the same mix of work as in a training step."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)  # separate, so that training's random numbers do not change
        self.inputs = torch.randn(256, 64, generator=draw)
        self.weights = [
            torch.randn(shape, generator=draw).mul_(0.1).requires_grad_() for shape in ((64, 256), (256, 64))
        ]

    def seconds(self) -> float:
        """CPU seconds of this thread for one timing."""
        self._compute()
        began = time.thread_time()
        self._compute()
        return time.thread_time() - began

    def _compute(self) -> None:
        first, second = self.weights
        with torch.enable_grad():
            for _ in range(REPEATS):
                outputs = torch.nn.functional.gelu(self.inputs @ first) @ second
                torch.autograd.grad((outputs.softmax(-1) * outputs).sum(), self.weights)


class _GPUKernel:
    """Products of two matrices in half precision: no switch such as TF32 changes their speed, and each takes longer
    than its launch, so that a slow host does not show. Takes 24 MiB for the whole run."""

    def __init__(self, side: int = SIDE, device: str = "cuda") -> None:
        draw = torch.Generator().manual_seed(0)
        self._factors = [torch.randn(side, side, generator=draw).to(device, torch.float16) for _ in range(2)]
        self._product = torch.empty_like(self._factors[0])
        self._watch = Stopwatch("cuda")

    def seconds(self) -> float:
        """The GPU's seconds for one timing."""
        self._watch.begin("kernel")
        with torch.no_grad():
            for _ in range(PRODUCTS):
                torch.mm(*self._factors, out=self._product)
        self._watch.end("kernel")
        return self._watch.lap()["kernel"]
