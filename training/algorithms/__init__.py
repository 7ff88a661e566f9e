"""The algorithms by name; each module has one `build(config, parts, device, output_dir, callbacks)`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

    from training.config import CanaryConfig
    from training.devices import Device
    from training.parts import Parts

# Names, not modules: a run imports only the stack it trains with.
ALGORITHMS = {
    "sft": "training.algorithms.sft",
    "dpo": "training.algorithms.dpo",
    "ppo": "training.algorithms.ppo",
}


def build(
    config: CanaryConfig, parts: Parts, device: Device, output_dir: Path, callbacks: list[TrainerCallback]
) -> Trainer:
    """The trainer of the configured algorithm, ready to train."""
    trainer: Trainer = import_module(ALGORITHMS[config.algo.name]).build(config, parts, device, output_dir, callbacks)
    return trainer
