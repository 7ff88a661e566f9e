"""Builds a run's model and trainer: before its turn where copies cost little, as then both cores are free for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

    from canary_mlflow.training.config import CanaryConfig
    from canary_mlflow.training.devices import Device
    from canary_mlflow.training.evaluation import EvaluateAtEnd
    from canary_mlflow.training.parts import Inputs, Parts

SMALL = 64 * 2**20  # bytes of weights: a tenth of what a process has loaded by then
WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True, kw_only=True)
class Built:
    """A trainer that has not begun. `evaluate`: its callback for the last evaluation, beside which the run's others
    belong."""

    parts: Parts
    trainer: Trainer
    evaluate: EvaluateAtEnd


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """What was built for a configuration, or the exception that this raised."""

    plain: dict[str, Any]  # training.plain.to_plain
    built: Built | None = None
    error: Exception | None = None

    def take(self, plain: dict[str, Any]) -> Built | None:
        """What was built, if it was for this configuration; raises what building raised."""
        if json.dumps(plain, sort_keys=True) != json.dumps(self.plain, sort_keys=True):
            return None
        if self.error is not None:
            raise self.error
        return self.built


def build_ahead(plain: dict[str, Any], config: CanaryConfig, inputs: Inputs, device: Device, folder: Path) -> Ahead:
    """Build the run of `plain` and keep what is raised for its turn, when there is a record to take it."""
    try:
        return Ahead(plain=plain, built=build_run(config, inputs, device, folder))
    except Exception as error:  # noqa: BLE001 - as above
        return Ahead(plain=plain, error=error)


def is_small(inputs: Inputs, device: Device) -> bool:
    """Whether the runs of a session may all have their models in memory. Never on a GPU, whose memory is one run's."""
    weights = [file.stat().st_size for pattern in WEIGHTS for file in inputs.folder.glob(pattern)]
    return device.kind == "cpu" and device.ranks == 1 and sum(weights) <= SMALL


def build_run(config: CanaryConfig, inputs: Inputs, device: Device, folder: Path) -> Built:
    """The trainer as configured, with its faults. The same configuration gives the same trainer, and leaves torch's and
    numpy's random generators in the same state."""
    from transformers import PrinterCallback, set_seed

    from canary_mlflow.training import faults
    from canary_mlflow.training.algorithms import build
    from canary_mlflow.training.evaluation import EvaluateAtEnd
    from canary_mlflow.training.parts import build_parts

    set_seed(config.seed)  # before anything is built; PPO's permutations come from numpy
    parts = faults.prepare(build_parts(config, device, inputs), config.fault)
    evaluate = EvaluateAtEnd()
    trainer = build(faults.configure(config), parts, device, folder / "trainer", [evaluate])
    trainer.remove_callback(PrinterCallback)  # the progress bar shows it better
    faults.install(trainer, config.fault)
    return Built(parts=parts, trainer=trainer, evaluate=evaluate)


def put_in_place(trainer: Trainer, one: TrainerCallback, callbacks: Sequence[TrainerCallback]) -> None:
    """Put callbacks in the place of one, as if the trainer had been built with them: they see each step in order."""
    order = trainer.callback_handler.callbacks
    order[order.index(one) : order.index(one) + 1] = callbacks
