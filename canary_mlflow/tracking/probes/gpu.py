"""What NVIDIA's driver says of the GPU that this process trains on: utilisation, memory, power, clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from canary_mlflow.tracking.probes import Probe, Row, Setting

MIB = 2**20
EVERY = 5  # steps between readings: each takes some 100 µs of the driver


class GPU(Probe):
    """`gpu_utilization` (%, of the driver's last sample period), `gpu_memory` (MiB, of all processes), `gpu_power` (W),
    `gpu_clock` (MHz, of the multiprocessors).

    The device is found by its UUID, because the driver's order of devices is not CUDA's. On a MIG slice memory is the
    slice's, power and clock the whole card's, and there is no utilisation. What the driver does not answer has no
    series; without a GPU, a driver or nvidia-ml-py there is none at all. The first rank's device only.
    """

    name = "gpu"

    def __init__(self) -> None:
        self._readings: Mapping[str, Callable[[], float]] = {}
        self._shutdown: Callable[[], None] | None = None
        self._steps = 0

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

    def step_ended(self, row: Row) -> None:
        if not self._readings:
            return
        self._steps += 1
        if self._steps % EVERY == 1:
            for name, read in self._readings.items():
                row[name] = read()

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


def driver_name(visible: str | None, index: int, uuid: str | None) -> str:
    """`GPU-…`, `MIG-…` or a device number, for a process's device `index`; `uuid` as torch gives it.

    A slice is named in CUDA_VISIBLE_DEVICES or not at all; what torch knows of it is the card's. Else the UUID is
    safe, and the list is what is left without it: names as they stand, numbers in the driver's order
    (CUDA_DEVICE_ORDER=PCI_BUS_ID), no list at all means the driver's own.
    """
    names = visible_names(visible)
    named = names[index] if index < len(names) else ""
    if named.startswith("MIG-"):
        return named
    if uuid:
        return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    return named or str(index)


def visible_names(visible: str | None) -> Sequence[str]:
    """The entries of CUDA_VISIBLE_DEVICES that count: CUDA ignores all from the first that is none."""
    names = []
    for entry in (visible or "").split(","):
        name = entry.strip()
        if not name or name == "-1" or name in names:
            break
        names.append(name)
    return names


def readings(nvml: Any, name: str) -> Mapping[str, Callable[[], float]]:
    """Those of the readings that the driver answers for this device; `nvml` is the module pynvml."""
    if name.isdigit():
        device = nvml.nvmlDeviceGetHandleByIndex(int(name))
    else:
        device = nvml.nvmlDeviceGetHandleByUUID(full_name(nvml, name))
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


def full_name(nvml: Any, name: str) -> str:
    """CUDA takes the beginning of a UUID where it is unique, the driver only all of it."""
    if name.startswith("MIG-"):
        return name
    for index in range(nvml.nvmlDeviceGetCount()):
        uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
        found: str = uuid.decode() if isinstance(uuid, bytes) else uuid
        if found.startswith(name):
            return found
    return name
