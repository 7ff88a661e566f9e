"""Counts what a training step does, operation by operation on one fixture batch: without a clock, so without noise."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

ALLOCATES = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided")
"""They take memory and move none."""
VIEWS = frozenset({"aten::view", "aten::_unsafe_view", "aten::t", "aten::transpose", "aten::expand", "aten::unsqueeze",
                   "aten::squeeze", "aten::slice", "aten::select", "aten::permute", "aten::detach", "aten::alias",
                   "aten::split", "aten::as_strided", "aten::unbind"})  # fmt: skip
READS = ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal")
CAST = "aten::_to_copy"
OURS = "canary_mlflow/tracking/probes/work.py"


@dataclass
class Counted:
    """The work of some steps."""

    ops: Counter[str] = field(default_factory=Counter)
    flops: Counter[str] = field(default_factory=Counter)  # by phase
    phases: Counter[str] = field(default_factory=Counter)
    sites: Counter[tuple[str, str]] = field(default_factory=Counter)  # (what, place) of casts, reads, large scratch
    traffic: int = 0
    allocated: int = 0
    tensors: int = 0
    sequence: Any = field(default_factory=hashlib.sha256)
    shapes: Any = field(default_factory=hashlib.sha256)


class Counting(TorchDispatchMode):  # type: ignore[misc]  # untyped in torch
    """Counts every operation while it is on. `optimizing` is set around the optimizer's step.

    A dispatch mode, below autograd: it sees the backward pass, recomputation and the optimizer too, but nothing inside
    fused, Triton or compiled kernels. It must never be on for a compiled model, which would stay eager afterwards
    (pytorch#123800), nor in the measured window. Design and what each number is worth: docs/why.md.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counted = Counted()
        self.optimizing = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._count(func, args, kwargs or {}, result)
        return result

    def _count(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        found, name, phase = self.counted, func.name().partition(".")[0], self.phase()
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        made = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        found.ops[name] += 1
        found.sequence.update(f"{phase} {name}\n".encode())
        found.shapes.update(
            f"{phase} {name} {[(tuple(one.shape), str(one.dtype)) for one in (*given, *made)]}\n".encode()
        )
        if name in VIEWS:
            return
        found.phases[phase] += 1
        found.tensors += len(given) + len(made)
        if counter := flop_registry.get(func._overloadpacket):
            found.flops[phase] += int(counter(*args, **kwargs, out_val=result))
        size = sum(map(_bytes, made))
        if name in ALLOCATES:
            found.allocated += size
            found.sites[f"scratch of {size} bytes", _site()] += 1
            return
        found.traffic += size + sum(map(_bytes, given))
        held = {one.untyped_storage()._cdata for one in given}
        found.allocated += sum(_bytes(one) for one in made if one.untyped_storage()._cdata not in held)
        if name == CAST and given and made and given[0].dtype != made[0].dtype:
            found.sites[f"cast {_type(given[0])} to {_type(made[0])}", _site()] += 1
        elif name in READS:
            found.sites["read of a scalar", _site()] += 1

    def phase(self) -> str:
        """forward, nograd (custom autograd functions too), backward, recompute (forward ops inside it), optimizer."""
        if self.optimizing:
            return "optimizer"
        if torch._C._current_graph_task_id() != -1:
            return "recompute" if torch.is_grad_enabled() else "backward"
        return "forward" if torch.is_grad_enabled() else "nograd"


def count(step: Callable[[], None], mode: Counting) -> Counted:
    """The work of one step."""
    mode.counted = Counted()
    with mode:
        step()
    return mode.counted


def _bytes(one: torch.Tensor) -> int:
    return int(one.numel() * one.element_size())


def _type(one: torch.Tensor) -> str:
    return str(one.dtype).removeprefix("torch.")


def _site() -> str:
    """The first caller outside torch and this file, as `trl/trainer/utils.py:1638`; the same on every machine."""
    for path, line in _callers():
        if "/torch/" not in path and OURS not in path:
            return f"{_relative(path)}:{line}"
    return "backward"


def _callers() -> Iterator[tuple[str, int]]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]


def _relative(path: str) -> str:
    for mark in ("/canary_mlflow/training/", "site-packages/", "/training/", "/tests/"):
        _, found, rest = path.rpartition(mark)
        if found:
            return rest if mark == "site-packages/" else f"{mark.split('/')[-2]}/{rest}"
    return path.rpartition("/")[2]


SHOWN = 96  # sites that are kept


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
        step(mode)  # in the first one the optimizer creates its state
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
    for (what, place), number in sorted(common, key=lambda item: item[0])[:SHOWN]:
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
