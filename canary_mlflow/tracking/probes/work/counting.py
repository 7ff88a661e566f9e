"""Counts what torch is asked to do: operations, FLOPs, traffic, casts, scalar reads, by phase and with source lines.

A dispatch mode, below autograd: it sees the backward pass, recomputation and the optimizer too, but nothing inside
fused, Triton or compiled kernels. It must never be on for a compiled model, which would stay eager afterwards
(pytorch#123800), nor in the measured window. Design and what each number is worth: docs/why.md.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

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
OURS = "canary_mlflow/tracking/probes/work/"


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
    """Counts every operation while it is on. `optimizing` is set around the optimizer's step."""

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
    for mark in ("site-packages/", "/training/", "/tests/"):
        _, found, rest = path.rpartition(mark)
        if found:
            return rest if mark == "site-packages/" else f"{mark.strip('/')}/{rest}"
    return path.rpartition("/")[2]
