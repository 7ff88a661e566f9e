"""Where a run computes and in which precision, decided once."""

from __future__ import annotations

from dataclasses import dataclass

from training.config import HardwareConfig
from training.errors import SetupError


@dataclass(frozen=True, kw_only=True)
class Device:
    """A settled choice: kind is cpu or cuda, precision fp32 or bf16."""

    kind: str
    precision: str


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
