"""The GPUs that a process may use, by the names that NVIDIA's driver knows. Loads no torch.

CUDA_VISIBLE_DEVICES counts in CUDA's order (fastest first), the driver in bus order: only a UUID means the same card to
both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def driver() -> Iterator[Any]:
    """The module pynvml, ready to be asked; None without a driver or nvidia-ml-py."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def visible(nvml: Any) -> Sequence[str]:
    """The names of the devices that CUDA shows to this process, in its order; `nvml` as `driver` yields it.

    UUIDs as far as the driver tells them. A number stays if CUDA's order is not known from here: cards of several kinds
    without CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = None if listed is None else visible_names(listed)
    if nvml is None:
        return names or []
    try:
        return _known(nvml, names)
    except nvml.NVMLError:
        return names or []  # a card that fell off the bus


def _known(nvml: Any, names: Sequence[str] | None) -> Sequence[str]:
    cards = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    same_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({*map(nvml.nvmlDeviceGetName, cards)}) < 2
    found = []
    for name in names if names is not None else map(str, range(len(cards))):
        if not name.isdigit():
            found.append(full_name(nvml, name))
        elif int(name) >= len(cards):
            break  # CUDA ignores everything from the first invalid entry on
        else:
            found.append(text(nvml.nvmlDeviceGetUUID(cards[int(name)])) if same_order else name)
    return found


def visible_names(listed: str | None) -> Sequence[str]:
    """The valid entries of CUDA_VISIBLE_DEVICES: CUDA ignores everything from the first invalid entry on."""
    names: list[str] = []
    for entry in (listed or "").split(","):
        name = entry.strip()
        if not name or name == "-1" or name in names:
            break
        names.append(name)
    return names


def driver_name(listed: str | None, index: int, uuid: str | None) -> str:
    """`GPU-…`, `MIG-…` or a device number, for a process's device `index`; `uuid` as torch gives it.

    A MIG slice is named in CUDA_VISIBLE_DEVICES or not at all, as torch knows only the UUID of its card. Otherwise the
    UUID is safe; without one, the list decides: names as they are, numbers in the driver's order
    (CUDA_DEVICE_ORDER=PCI_BUS_ID), and without a list the driver's own.
    """
    names = visible_names(listed)
    named = names[index] if index < len(names) else ""
    if named.startswith("MIG-"):
        return named
    if uuid:
        return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    return named or str(index)


def handle(nvml: Any, name: str) -> Any:
    """The driver's handle of the device with this name. Raises NVMLError for one that it does not know."""
    if name.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(full_name(nvml, name))


def mode(nvml: Any, device: Any) -> str:
    """How somebody has set the card up other than it comes, as far as the driver tells: `ECC off, power limit 350 of
    700 W`. It changes speed or memory without any change of code."""
    asked: Mapping[str, Callable[[], bool | str]] = {
        "ECC off": lambda: nvml.nvmlDeviceGetEccMode(device)[0] == nvml.NVML_FEATURE_DISABLED,
        "MIG on": lambda: nvml.nvmlDeviceGetMigMode(device)[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        "persistence off": lambda: nvml.nvmlDeviceGetPersistenceMode(device) == nvml.NVML_FEATURE_DISABLED,
        "power limit": lambda: _below(
            nvml.nvmlDeviceGetEnforcedPowerLimit(device),
            nvml.nvmlDeviceGetPowerManagementDefaultLimit(device), "W", 1000,
        ),
        "clock": lambda: _below(
            nvml.nvmlDeviceGetApplicationsClock(device, nvml.NVML_CLOCK_SM),
            nvml.nvmlDeviceGetDefaultApplicationsClock(device, nvml.NVML_CLOCK_SM), "MHz", 1,
        ),
    }  # fmt: skip
    found = []
    for name, ask in asked.items():
        with suppress(nvml.NVMLError, AttributeError):  # not supported by this card, or this nvidia-ml-py
            if said := ask():
                found.append(name if said is True else f"{name} {said}")
    return ", ".join(found)


def _below(now: int, usual: int, unit: str, per: int) -> str:
    return f"{now // per} of {usual // per} {unit}" if now < usual else ""


def full_name(nvml: Any, name: str) -> str:
    """The full UUID: CUDA accepts a unique beginning, the driver only the whole."""
    if name.startswith("MIG-"):
        return name
    for index in range(nvml.nvmlDeviceGetCount()):
        found = text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)))
        if found.startswith(name):
            return found
    return name


def text(value: str | bytes) -> str:
    """The value as a string: old releases of nvidia-ml-py answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value
