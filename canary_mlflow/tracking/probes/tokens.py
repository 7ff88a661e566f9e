"""Tokens that were trained on: counted, not computed from batch size and maximum length."""

from __future__ import annotations

from typing import Any

import torch

from canary_mlflow.tracking.probes import Probe, Row, Setting
from canary_mlflow.tracking.probes.forwards import ForwardHook

CUMULATIVE = "trl/num_tokens"  # TRL's own count: without padding, over all ranks, since the start


class Tokens(Probe):
    """Non-padding tokens of the sequences that went through the trained model in a step.

    Counted from the attention mask of each trained forward pass; without a mask (padding-free batches) every position
    is a token. With several ranks, or if the model's forward is not called directly, the growth of TRL's cumulative
    count is used. A trainer without tokens has no such series.
    """

    name = "tokens"

    def __init__(self) -> None:
        self._hook: ForwardHook | None = None
        self._counted: torch.Tensor | int | None = None
        self._before = 0.0
        self._prefer_trainer = False

    def start(self, setting: Setting) -> None:
        self._prefer_trainer = setting.ranks > 1
        if not setting.compiled:
            self._hook = ForwardHook(setting.model, self._see)

    def _see(self, inputs: dict[str, Any], output: Any) -> None:
        mask, ids = inputs.get("attention_mask"), inputs.get("input_ids")
        if isinstance(mask, torch.Tensor) and mask.dim() == 2:
            count: torch.Tensor | int = mask.sum()  # stays on its device until the step ends
        elif isinstance(ids, torch.Tensor):
            count = ids.numel()
        else:
            return
        self._counted = count if self._counted is None else self._counted + count

    def step_ended(self, row: Row) -> None:
        if self._counted is not None:
            row["tokens"] = float(self._counted)
            self._counted = None

    def row_closed(self, row: Row) -> None:
        total = row.get(CUMULATIVE)
        if total is not None:
            if self._prefer_trainer or "tokens" not in row:
                row["tokens"] = total - self._before
            self._before = total
        if row.get("step_time", 0.0) > 0 and "tokens" in row:
            row["tokens_per_second"] = row["tokens"] / row["step_time"]

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
