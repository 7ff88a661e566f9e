"""Where a run computes and in which precision, decided once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from training.config import HardwareConfig
from training.errors import SetupError


@dataclass(frozen=True, kw_only=True)
class Device:
    """A settled choice: kind is cpu or cuda, precision fp32 or bf16."""

    kind: str
    precision: str


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
    # A driver makes them: NVIDIA, Jetson, WSL, ROCm.
    if not any(any(Path("/dev").glob(name)) for name in ("nvidia[0-9]*", "nvhost-gpu", "dxg", "kfd")):
        return "no driver offers a GPU (no /dev/nvidia0)"
    return ""


def settle(hardware: HardwareConfig) -> Device:
    """Turn `auto` into what this machine has; SetupError when it lacks what was asked for."""
    import torch

    has_gpu = torch.cuda.is_available()
    kind = hardware.device
    if kind == "auto":
        kind = "cuda" if has_gpu else "cpu"
    if kind == "cuda" and not has_gpu:
        raise SetupError("hardware.device is cuda, but torch finds no GPU; use hardware=cpu, or check the driver")
    if kind == "cpu":
        # Numbers below 1e-38 take a CPU a hundred times longer; weights that collapse are full of them.
        torch.set_flush_denormal(True)
    precision = hardware.precision
    if precision == "auto":
        precision = "bf16" if kind == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return Device(kind=kind, precision=precision)
