"""canary_mlflow: watch a training run, keep its numbers in MLflow, guard the champion.

Names are looked up on first use: MLflow loads this package as a plugin while MLflow itself is only half imported, and
`canary --help` must not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from canary_mlflow.loading import quietly_4_bit

if TYPE_CHECKING:
    from canary_mlflow.api import add_evals, compare, gate, judge, register, replay
    from canary_mlflow.errors import CanaryError
    from canary_mlflow.frames import frame
    from canary_mlflow.registry.sessions.own import session
    from canary_mlflow.tracking.callback import CanaryCallback
    from canary_mlflow.tracking.loops.accelerate import AccelerateTracker
    from canary_mlflow.tracking.loops.lightning import LightningCallback
    from canary_mlflow.tracking.loops.run import LoopRun

__all__ = ["AccelerateTracker", "CanaryCallback", "CanaryError", "LightningCallback", "LoopRun", "add_evals",
           "compare", "frame", "gate", "judge", "register", "replay", "session"]  # fmt: skip

HOMES = {
    "CanaryCallback": "canary_mlflow.tracking.callback",
    "CanaryError": "canary_mlflow.errors",
    "AccelerateTracker": "canary_mlflow.tracking.loops.accelerate",
    "LightningCallback": "canary_mlflow.tracking.loops.lightning",
    "LoopRun": "canary_mlflow.tracking.loops.run",
    "add_evals": "canary_mlflow.api",
    "compare": "canary_mlflow.api",
    "frame": "canary_mlflow.frames",
    "gate": "canary_mlflow.api",
    "judge": "canary_mlflow.api",
    "register": "canary_mlflow.api",
    "replay": "canary_mlflow.api",
    "session": "canary_mlflow.registry.sessions.own",
}


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    with quietly_4_bit():
        return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
