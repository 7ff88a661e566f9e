"""Checks that values are finite; the error says where they stopped being so."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from training.errors import InstabilityError


def require_finite(step: int, **named: torch.Tensor) -> None:
    """Raise InstabilityError for the first tensor that holds NaN or infinity."""
    for name, tensor in named.items():
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise InstabilityError(step, f"{bad} of {tensor.numel()} {name.replace('_', ' ')} are not finite")


def require_finite_logs(step: int, logs: Mapping[str, object]) -> None:
    """Raise InstabilityError for the first logged number that is NaN or infinite."""
    for name, value in logs.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InstabilityError(step, f"{name} is {value}")
