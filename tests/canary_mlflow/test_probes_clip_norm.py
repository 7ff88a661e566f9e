"""A finite norm that a trainer took for clipping stands for all gradients, and hides none that is not finite."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_trainers import build
from transformers import TrainerCallback

from canary_mlflow import CanaryCallback
from canary_mlflow.tracking.probes import gradients


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors were read, each time that gradients were."""
    times: list[int] = []

    def counted(tensors: Any) -> torch.Tensor:
        times.append(len(tensors))
        return norms_of(tensors)

    norms_of = gradients.norms_of
    monkeypatch.setattr(gradients, "norms_of", counted)
    return times


def train(place: Path, *others: TrainerCallback, log_every_step: bool = True, spoil: Any = None, **own: Any) -> Any:
    """A recorded training of 12 steps: (the callback, the trainer)."""
    canary = CanaryCallback(sinks=(), system_metrics=False, watch=None, log_every_step=log_every_step)
    trainer = build("trainer", "", place, [*others, canary], **{"max_steps": 12} | own)
    if spoil is not None:
        spoil(trainer)
    trainer.train()
    return canary, trainer


def first_of(canary: CanaryCallback) -> str:
    assert canary.journal is not None
    return canary.journal.probes.tags()["canary.first_nonfinite"]


SHOWN = 3  # of `blind`: NaN, Inf and -Inf


def test_gradients_are_read_at_every_eighth_step_if_the_trainer_clips_and_logs_their_norm(
    place: Path, read: list[int]
) -> None:
    canary, trainer = train(place)
    assert read[SHOWN:] == [2, 2], "gradient and parameter of steps 1 and 9"
    logged = {row["step"]: row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row}
    assert {step: row["grad_norm"] for step, row in canary.rows.items() if step in logged} == logged
    assert all(row["nonfinite"] == 0 for step, row in canary.rows.items() if step)
    assert "clip_grad_norm_" not in vars(trainer.accelerator), "the accelerator has its own method back"


def test_without_a_logged_norm_at_each_step_all_are_read(place: Path, read: list[int]) -> None:
    canary, _ = train(place, log_every_step=False, logging_steps=5)
    assert len(read[SHOWN:]) == 12
    assert all("grad_norm" in row for step, row in canary.rows.items() if step)


def test_a_clipping_that_hides_a_nan_is_not_believed(place: Path, read: list[int]) -> None:
    def hide(trainer: Any) -> None:
        def clip(self: Any, parameters: Any, *given: Any, **named: Any) -> torch.Tensor:
            return original(self, parameters, *given, **named).nan_to_num(1.0, 1.0, 1.0)

        kind = type(trainer.accelerator)
        original = kind.clip_grad_norm_
        trainer.accelerator.__class__ = type("Hiding", (kind,), {"clip_grad_norm_": clip})
        spoil_before_clipping(math.nan)(trainer)

    canary, _ = train(place, spoil=hide)
    assert len(read[SHOWN:]) == 12
    assert first_of(canary) == "step 4: gradient of w"


def spoil_before_clipping(value: float) -> Any:
    def install(trainer: Any) -> None:
        training_step = trainer.training_step

        def spoilt(model: Any, *given: Any, **named: Any) -> Any:
            loss = training_step(model, *given, **named)
            if trainer.state.global_step == 3:
                model.w.grad[1] = value
            return loss

        trainer.training_step = spoilt

    return install


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_was_spoilt_before_clipping_is_named(value: float, place: Path, read: list[int]) -> None:
    canary, _ = train(place, spoil=spoil_before_clipping(value))
    assert first_of(canary) == "step 4: gradient of w"
    assert len(read[SHOWN:]) >= 3, "the fourth step's were read as well"


class SpoilAfterClipping(TrainerCallback):
    """Writes into the gradient, or puts another in its place."""

    def __init__(self, value: float, *, replace: bool) -> None:
        self.value, self.replace = value, replace

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step == 4 and self.replace:
            model.w.grad = torch.full_like(model.w, self.value)
        elif state.global_step == 4:
            model.w.grad[1] = self.value


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_was_spoilt_after_clipping_is_named(value: float, replace: bool, place: Path) -> None:
    canary, _ = train(place, SpoilAfterClipping(value, replace=replace))
    assert first_of(canary) == "step 5: gradient of w"
    assert [canary.rows[step]["nonfinite"] > 0 for step in (4, 5)] == [False, True]


def test_a_norm_of_other_parameters_proves_nothing(place: Path, read: list[int]) -> None:
    def of_others(trainer: Any) -> None:
        clip = trainer._clip_grad_norm

        def both(model: Any) -> Any:
            norm = clip(model)
            trainer.accelerator.clip_grad_norm_([torch.nn.Parameter(torch.ones(2))], 1.0)
            return norm

        trainer._clip_grad_norm = both

    train(place, spoil=of_others)
    assert len(read[SHOWN:]) == 12
