"""Where a run computes and in which precision, decided once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from canary_mlflow.tracking import gpus
from training.config import HardwareConfig
from training.errors import SetupError


@dataclass(frozen=True, kw_only=True)
class Device:
    """A settled choice: kind is cpu or cuda, precision fp32 or bf16. `note`: what of it nobody would expect."""

    kind: str
    precision: str
    note: str = ""


def environment(hardware: Mapping[str, Any]) -> dict[str, str]:
    """What a run's process needs in its environment, before it loads torch.

    One device: with more of them in sight Transformers wraps a model in DataParallel, which TRL refuses. All runs of a
    session take the same one, CUDA's first, so that they are compared on one card.
    """
    found: dict[str, str] = {}
    if hardware.get("device") != "cpu":
        with gpus.driver() as nvml:
            names = gpus.visible(nvml)
        if len(names) > 1:
            found["CUDA_VISIBLE_DEVICES"] = names[0]
    if hardware.get("deterministic"):
        found["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # docs.nvidia.com/cuda/cublas, "Results Reproducibility"
    return found


def check(hardware: HardwareConfig) -> None:
    """Raise SetupError for what this machine has not, as far as can be seen without importing torch."""
    cores = os.cpu_count() or 1
    if hardware.threads > cores:
        raise SetupError(f"hardware.threads is {hardware.threads}; expected at most {cores}, the cores of this machine")
    if hardware.device == "cuda" and (why := _no_gpu()):
        raise SetupError(f"hardware.device is cuda, but {why}; expected a GPU that torch can use; or use hardware=cpu")


def _no_gpu() -> str:
    """Why torch cannot find a GPU here; "" when it may."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    if version("torch").endswith("+cpu"):
        return f"torch {version('torch')} is built for the CPU alone"
    if not _has_driver():
        return "no driver offers a GPU (no /dev/nvidia0)"
    return ""


def _has_driver() -> bool:
    """Whether a driver has made its files: NVIDIA, Jetson, WSL, ROCm."""
    return any(any(Path("/dev").glob(name)) for name in ("nvidia[0-9]*", "nvhost-gpu", "dxg", "kfd"))


def settle(hardware: HardwareConfig) -> Device:
    """Turn `auto` into what this machine has; SetupError when it lacks what was asked for."""
    import torch

    has_gpu, why = _look_for_gpu()
    kind, note = hardware.device, ""
    if kind == "cuda" and not has_gpu:
        raise SetupError(f"hardware.device is cuda, but {why}; use hardware=cpu, or update the driver")
    if kind == "auto":
        kind = "cuda" if has_gpu else "cpu"
        if kind == "cpu" and _has_driver() and os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() not in ("", "-1"):
            note = f"the runs use the CPU: this machine has a GPU, but {why}; hardware=cpu keeps to the CPU"
    if kind == "cpu":
        # Numbers below 1e-38 take a CPU a hundred times longer; weights that collapse are full of them.
        torch.set_flush_denormal(True)
    if hardware.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    # A card older than Ampere emulates bf16 through fp32, many times slower; torch counts that as support.
    native = kind == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    precision = hardware.precision
    if precision == "auto":
        precision = "bf16" if native else "fp32"
    elif precision == "bf16" and kind == "cuda" and not native:
        note = "this card only emulates bf16, which is slow; hardware.precision=fp32 is what it can do"
    return Device(kind=kind, precision=precision, note=note)


def memory(kind: str) -> int | None:
    """Bytes of the device that a run of this kind would take, as far as they can be had: of a GPU what is free, of a
    machine what is available within the process's control group. None where that is not known."""
    if kind == "cpu":
        import psutil

        free = int(psutil.virtual_memory().available)
        limits = (_control_group(name) for name in ("memory.max", "memory/memory.limit_in_bytes"))
        return min([free, *(limit for limit in limits if limit)])
    with gpus.driver() as nvml:
        try:
            names = gpus.visible(nvml) if nvml is not None else ()
            return int(nvml.nvmlDeviceGetMemoryInfo(gpus.handle(nvml, names[0])).free) if names else None
        except nvml.NVMLError:
            return None


def _control_group(name: str) -> int | None:
    try:
        text = Path("/sys/fs/cgroup", name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _look_for_gpu() -> tuple[bool, str]:
    """Whether torch can use a GPU, and if not, why, in its own words where it has some: it warns and says no."""
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return True, ""
    words = [str(one.message).removeprefix("CUDA initialization: ").split("(Triggered")[0].strip() for one in said]
    return False, f"torch {torch.__version__} cannot use it: {words[0]}" if words else _no_gpu() or "torch finds no GPU"
