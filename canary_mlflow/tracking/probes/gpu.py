"""What NVIDIA's driver says about the GPU that this process trains on: utilisation, memory, power, clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from canary_mlflow.tracking.describing.gpus import driver_name, handle
from canary_mlflow.tracking.probes import Probe, Row, Setting
from canary_mlflow.tracking.probes.memory import MIB

EVERY = 5  # steps between readings: each takes some 100 µs of the driver


class GPU(Probe):
    """`gpu_utilization` (%, of the driver's last sample period), `gpu_memory` (MiB, of all processes), `gpu_power` (W),
    `gpu_clock` (MHz, of the multiprocessors).

    The device is found by its UUID, because the driver's order of devices is not CUDA's. On a MIG slice memory is the
    slice's, power and clock the whole card's, and there is no utilisation. What the driver does not answer has no
    series; without a GPU, a driver or nvidia-ml-py there is none at all. The first rank's device only.

    Read right before the optimizer's step, while the step's kernels run: at its end the GPU has been waited for and
    idles, which says nothing of its clock. A trainer that does not say when that is, is asked at the end.
    """

    name = "gpu"

    def __init__(self) -> None:
        self._readings: Mapping[str, Callable[[], float]] = {}
        self._shutdown: Callable[[], None] | None = None
        self._steps = 0
        self._read: Row | None = None  # since the step's end; None: nothing was asked yet

    def start(self, setting: Setting) -> None:
        if setting.device != "cuda":
            return
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return  # no driver to ask
        self._shutdown = pynvml.nvmlShutdown
        self._readings = readings(pynvml, device_name())

    def listens(self, event: str) -> bool:
        return bool(self._readings) and super().listens(event)

    def before_optimizer(self) -> None:
        if self._readings and self._read is None:
            self._read = self._ask()

    def step_ended(self, row: Row) -> None:
        if self._readings:
            row.update(self._ask() if self._read is None else self._read)
            self._read = None

    def _ask(self) -> Row:
        self._steps += 1
        return {name: read() for name, read in self._readings.items()} if self._steps % EVERY == 1 else {}

    def stop(self) -> None:
        self._readings = {}
        if self._shutdown is not None:
            self._shutdown()
            self._shutdown = None


def device_name() -> str:
    """The name by which the driver knows torch's current device."""
    import os

    import torch

    index = torch.cuda.current_device()
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return driver_name(os.environ.get("CUDA_VISIBLE_DEVICES"), index, None if uuid is None else str(uuid))


def readings(nvml: Any, name: str) -> Mapping[str, Callable[[], float]]:
    """The readings that the driver supports for this device. `nvml`: the module pynvml."""
    device = handle(nvml, name)
    card = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device) if name.startswith("MIG-") else device
    wanted: dict[str, Callable[[], float]] = {
        "gpu_utilization": lambda: float(nvml.nvmlDeviceGetUtilizationRates(device).gpu),
        "gpu_memory": lambda: nvml.nvmlDeviceGetMemoryInfo(device).used / MIB,
        "gpu_power": lambda: nvml.nvmlDeviceGetPowerUsage(card) / 1000,  # milliwatts
        "gpu_clock": lambda: float(nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)),
    }
    answered = {}
    for metric, read in wanted.items():
        try:
            read()
        except nvml.NVMLError:
            continue  # not supported here: no series
        answered[metric] = read
    return answered
