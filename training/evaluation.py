"""Quality on held-out data: measured once when training is done, and again with what was saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from canary_mlflow.training.errors import first_line
from canary_mlflow.training.mlflow_model import policy_of

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
