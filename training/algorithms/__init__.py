"""The algorithms: every module of this folder is one, under its own name.

A module has `Settings`, a dataclass of its keys (training.config.Algo has the methods that it may override); `STACK`,
the modules that its training needs, loaded before a run's turn; and `build(config, parts, device, output_dir,
callbacks)`. It imports nothing heavy itself: the command line is checked before torch is loaded.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

    from canary_mlflow.training.config import Algo, CanaryConfig
    from canary_mlflow.training.devices import Device
    from canary_mlflow.training.parts import Parts

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def schemas() -> dict[str, type[Algo]]:
    """The settings of every algorithm, by its name."""
    return {name: _module(name).Settings for name in NAMES}


def load(name: str) -> None:
    """Import everything that the algorithm needs for training; a run loads only its own algorithm."""
    for module in _module(name).STACK:
        import_module(module)


def build(
    config: CanaryConfig, parts: Parts, device: Device, output_dir: Path, callbacks: list[TrainerCallback]
) -> Trainer:
    """The trainer of the configured algorithm, ready to train."""
    trainer: Trainer = _module(config.algo.name).build(config, parts, device, output_dir, callbacks)
    return trainer


def _module(name: str) -> ModuleType:
    return import_module(f"{__name__}.{name}")
