"""The setting that a probe gets, for tests that run it without a trainer."""

from __future__ import annotations

from typing import Any

import torch

from canary_mlflow.tracking.probes import Setting


def setting(**own: Any) -> Setting:
    usual: dict[str, Any] = {
        "model": torch.nn.Linear(2, 2),
        "device": "cpu",
        "compiled": False,
        "ranks": 1,
        "iterates": False,
        "idle_cpu": float,
    }
    return Setting(**usual | own)
