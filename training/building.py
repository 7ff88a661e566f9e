"""Builds a run's model and trainer, before its turn where copies cost little, as then both cores are free for it; and
measures quality on held-out data: once when training is done, and again with what was saved."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from canary_mlflow.training.errors import first_line
from canary_mlflow.training.mlflow_model import policy_of

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

    from canary_mlflow.training.config import CanaryConfig
    from canary_mlflow.training.devices import Device
    from canary_mlflow.training.parts import Inputs, Parts


# How far two evaluations of the same weights may differ: absolute, or relative for numbers above 1. On a CPU they are
# bit for bit the same, except on an nf4 base (up to 2e-3 of a log-probability of -110); a GPU may add in another order.
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2}
NOT_OF_THE_MODEL = ("_runtime", "_per_second", "_num_tokens")


class EvaluateAtEnd(TrainerCallback):
    """Asks the trainer for one evaluation after its last optimizer step."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            control.should_evaluate = True


def repeat_evaluation(trainer: Trainer, load: Callable[[], Any], precision: str) -> dict[str, Any]:
    """Evaluate the weights that `load` reads back from disk, in the way the run evaluated the trained ones.

    Returns both evaluations and which numbers differ; or `failure`: why the weights cannot be loaded or evaluated. The
    trainer must have ended and evaluated; afterwards its model is the loaded one, and its callbacks are gone.
    """
    recorded = last_evaluation(trainer)
    for callback in list(trainer.callback_handler.callbacks):
        trainer.remove_callback(callback)  # the run's recording has ended
    try:
        put_in(policy_of(trainer), load())
        trainer.evaluate()
    except Exception as error:  # noqa: BLE001 - a library may raise anything over files that it cannot use
        said = f"{type(error).__name__}: {first_line(error)}"
        return {"failure": "".join(sign for sign in said if sign.isprintable())}
    repeated = last_evaluation(trainer)
    tolerance = TOLERANCE[precision]
    different = [name for name in recorded if not same(recorded[name], repeated.get(name, math.nan), tolerance)]
    return {
        "recorded": as_json(recorded), "repeated": as_json(repeated), "tolerance": tolerance, "different": different,
    }  # fmt: skip


def last_evaluation(trainer: Trainer) -> dict[str, float]:
    """The newest evaluation on held-out data, under the trainer's own names; empty if there is none."""
    rows = [row for row in trainer.state.log_history if any(name.startswith("eval_") for name in row)]
    return {
        name: float(value)
        for name, value in sorted((rows[-1] if rows else {}).items())
        if name.startswith("eval_") and not name.endswith(NOT_OF_THE_MODEL)
    }


def as_json(numbers: dict[str, float]) -> dict[str, float | None]:
    """The numbers for JSON, which has no NaN and no infinity: these become None."""
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


def same(one: float, other: float, tolerance: float) -> bool:
    """Whether two numbers are equal within the tolerance; NaN equals NaN."""
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other or abs(one - other) <= tolerance * max(1.0, abs(one))


def put_in(trained: Any, loaded: Any) -> None:
    """Give a model the weights of another. In place, as trainers patch the model that they were given.

    Quantized weights stay as they are: they were never trained.
    """
    mine, theirs = trained.state_dict(), loaded.state_dict()
    if mine.keys() != theirs.keys():
        lacking = sorted(mine.keys() ^ theirs.keys())
        raise ValueError(f"the saved model has other weights than the trained one: {lacking[0]} and others")
    with torch.no_grad():
        for name, tensor in mine.items():
            if tensor.is_floating_point():
                tensor.copy_(theirs[name])


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
