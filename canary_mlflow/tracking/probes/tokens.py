"""What a step and an evaluation were made of: tokens that were trained on, labels that were learned."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

from canary_mlflow.tracking.describing.data_facts import IGNORED_LABEL
from canary_mlflow.tracking.describing.fact_tags import to_tags
from canary_mlflow.tracking.probes import Probe, Row, Setting
from canary_mlflow.tracking.probes.hooks import ForwardHook

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


class Labels(Probe):
    """The facts `labels.trained` and `labels.which`, over all steps of a training that reached its last one, and
    `labels.evaluated`, for each evaluation on the way; several numbers if they differ.

    `labels.which` is the sum of their cubes, which neither order, padding nor packing changes: other rows from the
    second step on, as many of them as before, show in nothing else that is exact.

    Counted in the `labels` that the model's forward gets, without ignored ones; nothing for trainers that keep
    their labels to themselves, nor under `torch.compile`, nor in a resumed training, which has not seen the first
    steps. An evaluation after the training is counted by its batches (tracking/describing/evaluations.py): by then
    no hook may be left on the model.
    """

    name = "labels"

    def __init__(self) -> None:
        self._hook: ForwardHook | None = None
        self._trainer: weakref.ref[Any] | None = None  # it holds the callback, which must be seen to go with it
        self._trained: torch.Tensor | None = None
        self._cubes: torch.Tensor | None = None  # with those of ignored labels, until the end
        self._places = 0
        self._evaluated: torch.Tensor | None = None
        self._evaluations: set[int] = set()
        self._found: dict[str, str] = {}

    def start(self, setting: Setting) -> None:
        if not setting.compiled and not setting.resumed:
            self._trainer = None if setting.trainer is None else weakref.ref(setting.trainer)
            self._hook = ForwardHook(setting.model, self._learn, self._evaluate)

    def _learn(self, inputs: Mapping[str, Any], output: Any) -> None:
        labels = inputs.get("labels")
        if isinstance(labels, torch.Tensor):
            self._trained = _and(self._trained, (labels != IGNORED_LABEL).sum())
            if not labels.is_floating_point():
                self._places += labels.numel()
                self._cubes = _and(self._cubes, (labels * labels * labels).sum())

    def _evaluate(self, inputs: Mapping[str, Any], output: Any) -> None:
        labels = inputs.get("labels")
        if isinstance(labels, torch.Tensor):
            self._evaluated = _and(self._evaluated, (labels != IGNORED_LABEL).sum())

    def paused(self) -> None:
        if self._evaluated is not None:
            self._evaluations.add(int(self._evaluated))
            self._evaluated = None

    def ended(self) -> None:
        state = getattr(self._trainer and self._trainer(), "state", None)
        if self._trained is not None and state is not None and state.global_step == state.max_steps:
            self._found["trained"] = str(int(self._trained))
            if self._cubes is not None:
                ignored = self._places - int(self._trained)
                self._found["which"] = str((int(self._cubes) - ignored * IGNORED_LABEL**3) % 2**64)
        if self._evaluations:
            self._found["evaluated"] = ", ".join(map(str, sorted(self._evaluations)))

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def tags(self) -> Mapping[str, str]:
        return to_tags({"labels": self._found})


def _and(before: torch.Tensor | None, more: torch.Tensor) -> torch.Tensor:
    """The sum with one more batch; it stays on its device until it is asked for."""
    return more if before is None else before + more
