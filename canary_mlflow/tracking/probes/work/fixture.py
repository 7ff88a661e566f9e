"""The fixture: the first rows of the training data through the trainer's own collator, step and optimizer. The batch is
the same whatever the seed, so that its work is the same bit for bit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from canary_mlflow.tracking.probes.work.counting import VIEWS, Counted, Counting, count

WARM = 1  # steps before those that are counted: in the first, the optimizer creates its state
SHOWN = 12  # sites that are kept


def work_facts(trainer: Any) -> dict[str, str]:
    """The facts `work.*` of one step of this trainer; `status` says why there is nothing else.

    It trains three more steps, so call it when everything else in the run is over and the model is already saved.
    """
    if reason := unfit(trainer):
        return {"status": f"unavailable: {reason}"}
    try:
        batch, rows = fixture_of(trainer)
        if not isinstance(batch, Mapping):
            return {"status": "unavailable: its batches are sampled"}
        step, mode = Step(trainer, batch), Counting()
        trainer.model.train()
        for _ in range(WARM):
            step(mode)
        first, again = (count(lambda: step(mode), mode) for _ in range(2))
    except Exception as error:  # noqa: BLE001 - a trainer's own step may need anything that a fixture does not give
        said = (str(error).splitlines() or [""])[0][:150]
        return {"status": f"unavailable: {type(error).__name__}: {said}"}
    if first.shapes.hexdigest() != again.shapes.hexdigest():
        return {"status": "unavailable: two equal steps did not do the same work"}
    return {"status": "counted", "fixture": digest_of(batch), "rows": rows, **as_facts(again)}


def unfit(trainer: Any) -> str:
    """Why a trainer's step cannot be counted; '' if it can."""
    if getattr(trainer.args, "torch_compile", False) or any(
        type(module).__name__ == "OptimizedModule" for module in trainer.model.modules()
    ):
        return "a compiled model would stay eager"
    if int(getattr(trainer.args, "world_size", 1)) > 1:
        return "several ranks"
    data = getattr(trainer, "train_dataset", None)
    if data is None or not hasattr(data, "__getitem__") or not hasattr(data, "column_names"):
        return "no rows that a fixture could be made of"
    return ""


def fixture_of(trainer: Any) -> tuple[Any, str]:
    """(the batch, a digest of the values in its rows); a trainer that samples its batches has no mapping."""
    size = min(int(trainer.args.per_device_train_batch_size), len(trainer.train_dataset))
    rows = [trainer.train_dataset[at] for at in range(size)]
    names = getattr(trainer, "_signature_columns", None)
    if names and getattr(trainer.args, "remove_unused_columns", False):
        rows = [{key: value for key, value in row.items() if key in names} or row for row in rows]
    texts = [sorted(json.dumps(value, default=_plain, sort_keys=True) for value in row.values()) for row in rows]
    return trainer.data_collator(rows), hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """What of a value is the same in every process."""
    return value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else type(value).__name__


def digest_of(batch: Mapping[str, Any]) -> str:
    """A digest of a batch's tensors."""
    sha = hashlib.sha256()
    for name in sorted(batch):
        if isinstance(batch[name], torch.Tensor):
            sha.update(f"{name} {tuple(batch[name].shape)} ".encode() + batch[name].cpu().numpy().tobytes())
    return sha.hexdigest()[:16]


class Step:
    """One whole optimizer step on the fixture."""

    def __init__(self, trainer: Any, batch: Mapping[str, Any]) -> None:
        self.trainer, self.batch = trainer, batch

    def __call__(self, mode: Counting) -> None:
        trainer = self.trainer
        trainer.training_step(trainer.model, dict(self.batch))
        if trainer.args.max_grad_norm:
            trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), trainer.args.max_grad_norm)
        mode.optimizing = True
        try:
            trainer.optimizer.step()
        finally:
            mode.optimizing = False
        trainer.model.zero_grad()


def as_facts(found: Counted) -> dict[str, str]:
    """Counts as facts: totals, phases, operations, and the places of casts, reads and scratch memory."""
    phases = {f"ops.{phase}": str(count) for phase, count in sorted(found.phases.items())}
    flops = {f"flops.{phase}": str(count) for phase, count in sorted(found.flops.items())}
    common = found.sites.most_common()
    sites: dict[str, str] = {}
    for (what, place), number in sorted(common, key=lambda item: item[0])[: 8 * SHOWN]:
        kind = what.partition(" of ")[0] if what.startswith("scratch") else what
        key = f"site.{kind}"
        sites[key] = f"{sites[key]}; {number} at {place}" if key in sites else f"{number} at {place}"
    return {
        "flops": str(sum(found.flops.values())),
        "traffic": str(found.traffic),
        "allocated": str(found.allocated),
        "ops": str(sum(found.phases.values())),
        "tensors": str(found.tensors),
        **phases,
        **flops,
        **{
            f"calls.{name.removeprefix('aten::')}": str(calls)
            for name, calls in sorted(found.ops.items())
            if name not in VIEWS
        },
        **sites,
        "attention": ", ".join(sorted(name for name in found.ops if "attention" in name)) or "none",
        "sequence": found.sequence.hexdigest()[:16],
        "shapes": found.shapes.hexdigest()[:16],
    }
