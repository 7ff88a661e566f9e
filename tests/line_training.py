"""The smallest real training: a straight line fitted to another, healthy until its learning rate is raised."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from canary_mlflow import CanaryCallback


class Line(torch.nn.Module):
    """A straight line that is fitted to another one."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = x @ self.slope
        return {"loss": (found - labels).square().mean(), "logits": found}


class RaiseTheRate(TrainerCallback):
    """From one step on, steps go beyond the valley: the loss grows, and stays finite for a while."""

    def __init__(self, broken_at: int) -> None:
        self.broken_at = broken_at

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if state.global_step >= self.broken_at:
            for group in optimizer.param_groups:
                group["lr"] = 1.1


class Slowly(TrainerCallback):
    """Steps that take a while, as a model's do."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(self.seconds)


def rows(count: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 4, generator=generator)
    y = x @ torch.tensor([1.0, -1.0, 2.0, 0.5]) + 0.5 * torch.randn(count, generator=generator)
    return [{"x": one, "labels": label} for one, label in zip(x, y, strict=True)]


def fit(place: Path, canary: CanaryCallback, steps: int, *extra: TrainerCallback) -> None:
    """Train on the CPU, for that many steps."""
    model = Line()
    arguments = TrainingArguments(
        output_dir=str(place / "out"),
        max_steps=steps,
        per_device_train_batch_size=16,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    callbacks = [canary, *extra]
    Trainer(model, arguments, train_dataset=rows(512), callbacks=callbacks, optimizers=(optimizer, None)).train()
