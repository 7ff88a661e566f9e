"""NaN and Inf: seen in what is logged, and in the loss itself if logging would hide it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from canary_mlflow.tracking.describing.schema import is_fault
from canary_mlflow.tracking.probes import Probe, Row, Setting
from canary_mlflow.tracking.probes.hooks import ForwardHook


class Finiteness(Probe):
    """Counts the values of a step that are NaN or infinite but must not be (`is_fault`), and the steps that had any.

    Transformers misreports a NaN loss in two ways, and both are corrected if the model computes its own loss: with
    `logging_nan_inf_filter` (which the callback turns off, but something may turn on again) it logs 0.0; without, its
    running sum stays NaN for the rest of the run, because NaN - NaN is not zero. Otherwise the gradient norm, which
    Transformers reports unchanged, tells a NaN loss from the echo of an earlier one.
    """

    name = "finiteness"
    essential = True

    def __init__(self) -> None:
        self.nan_steps = 0
        self.inf_steps = 0
        self._hook: ForwardHook | None = None
        self._losses: list[torch.Tensor] = []  # of the step's micro-batches
        self._seen: list[float] = []
        self._echo = False  # an earlier loss was non-finite

    def start(self, setting: Setting) -> None:
        if setting.model is not None and not setting.compiled:
            self._hook = ForwardHook(setting.model, self._see)

    def blind(self) -> str:
        for bad in (math.nan, math.inf):
            watcher = type(self)()
            watcher._see({}, {"loss": torch.tensor(bad)})
            row = {"loss": 0.0, "grad_norm": bad}  # as the filter would log it
            watcher.step_ended(row)
            watcher.row_closed(row)
            counted = watcher.nan_steps if math.isnan(bad) else watcher.inf_steps
            if row["nonfinite"] != 2 or counted != 1:
                return f"{bad} in a loss and in what is logged"
        return ""

    def _see(self, inputs: dict[str, Any], output: Any) -> None:
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._losses.append(loss.detach())

    def step_ended(self, row: Row) -> None:
        if len(self._losses) == 1:
            self._seen = [self._losses.pop().item()]
        elif self._losses:
            self._seen = torch.stack(self._losses).float().tolist()  # one transfer from the device
            self._losses.clear()

    def row_closed(self, row: Row) -> None:
        seen, self._seen = self._seen, []
        if self._echo or not math.isfinite(sum(seen, row.get("loss", 0.0))):  # no sum with a NaN or an Inf is finite
            self._correct(row, seen)
        tensors = row.get("nonfinite", 0.0)  # as Gradients counted them, over all ranks
        row["nonfinite"] = tensors
        if math.isfinite(sum(row.values())) and not tensors:
            return
        bad = [value for name, value in row.items() if not math.isfinite(value) and is_fault(name, value)]
        row["nonfinite"] += len(bad)
        infinite = any(math.isinf(value) for value in bad)
        self.inf_steps += infinite
        # A norm does not tell NaN from infinity; a bad tensor about which nothing was logged counts as NaN.
        self.nan_steps += any(math.isnan(value) for value in bad) or (tensors > 0 and not infinite)

    def _correct(self, row: Row, seen: Sequence[float]) -> None:
        """Set the row's loss to the step's true loss. `seen`: the losses of its micro-batches."""
        broken = [loss for loss in seen if not math.isfinite(loss)]
        logged = row.get("loss", 0.0)
        if broken and math.isfinite(logged):
            row["loss"] = broken[0]  # what was logged is the filter's invention
        elif self._echo and not broken and not math.isfinite(logged):
            if len(seen) == 1:
                row["loss"] = seen[0]
            elif seen or math.isfinite(row.get("grad_norm", math.nan)):
                del row["loss"]  # finite, but its value was not logged
        self._echo = self._echo or not math.isfinite(row.get("loss", 0.0))

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
