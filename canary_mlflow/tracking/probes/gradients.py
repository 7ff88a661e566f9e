"""Gradients and parameters before the optimizer moves: are they finite, and if not, which tensor was the first?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter, is_
from typing import Any

import torch

from canary_mlflow import tags
from canary_mlflow.gates.model.metrics import LAYER_GROUPS
from canary_mlflow.tracking.probes import BEAT, Probe, Row, Setting
from canary_mlflow.tracking.probes.hooks import replace_method

METHOD = "clip_grad_norm_"  # accelerate's, of (parameters, largest norm)
GRADIENT, VERSION = attrgetter("grad"), attrgetter("_version")


class ClipNorm:
    """Catches the norm where the trainer asks accelerate for it, so that nobody has to read the gradients again.

    A norm counts only if it was taken over all of `parameters`, and if no gradient was written to or replaced since
    (torch counts writes; one through `.data` or memory shared with NumPy escapes it). CPU only: on a GPU, asking for
    the number would make the training wait.
    """

    def __init__(self) -> None:
        self._parameters: list[torch.Tensor] = []
        self._covering: list[torch.Tensor] = []  # what the norm was last taken of, if that covers the parameters
        # Norm, gradients, those that are tensors, writes to these.
        self._taken: tuple[float, list[Any], list[torch.Tensor], int] | None = None
        self._undo: Callable[[], None] | None = None

    def start(self, trainer: Any, parameters: Sequence[torch.Tensor]) -> None:
        """Watch this trainer's accelerator, if the norm that it takes shows a NaN and an Inf."""
        owner = getattr(trainer, "accelerator", None)
        original = getattr(owner, METHOD, None)
        if original is None or METHOD in vars(owner) or getattr(owner, "scaler", None) is not None:
            return
        if not all(one.device.type == "cpu" for one in parameters) or not shows(original, parameters):
            return
        self._parameters = list(parameters)

        def caught(given: Any, *most: Any, **named: Any) -> Any:
            self._taken = None
            if isinstance(given, torch.Tensor) or len(most) != 1 or named:  # another order of the norm, perhaps
                return original(given, *most, **named)
            given = list(given)
            norm = original(given, *most)
            with suppress(Exception):  # whatever this meets, the training goes on, and its gradients are read
                if most[0] > 0:
                    self._note(given, norm)
            return norm

        self._undo = replace_method(owner, METHOD, caught)

    def take(self) -> float | None:
        """The norm of the gradients as they are now, before clipping; None if none is known, or it is not finite."""
        if self._taken is None:
            return None
        (norm, gradients, held, writes), self._taken = self._taken, None
        if not all(map(is_, map(GRADIENT, self._parameters), gradients)) or writes != writes_to(held):
            return None
        return norm if math.isfinite(norm) else None

    def stop(self) -> None:
        """Give the accelerator its own method back."""
        self._taken = None
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _note(self, given: list[Any], norm: Any) -> None:
        if type(norm) is not torch.Tensor:  # FSDP's and DeepSpeed's say nothing of this rank's gradients
            return
        if len(given) != len(self._covering) or not all(map(is_, given, self._covering)):
            if not set(map(id, self._parameters)) <= set(map(id, given)):
                return
            self._covering = given
        gradients = list(map(GRADIENT, self._parameters))
        held = [one for one in gradients if one is not None]
        self._taken = norm.item(), gradients, held, writes_to(held)  # read while torch has it at hand


def writes_to(gradients: Sequence[torch.Tensor]) -> int:
    """How often they were written to, as torch counts. Raises RuntimeError for inference tensors."""
    return sum(map(VERSION, gradients))


def shows(clip: Callable[..., Any], parameters: Sequence[torch.Tensor]) -> bool:
    """Whether the norm of two gradients is not finite if one of them is not, in each of the parameters' dtypes."""
    for dtype in {one.dtype for one in parameters}:
        for bad in (math.nan, math.inf, -math.inf):
            shown = [torch.nn.Parameter(torch.ones(3, dtype=dtype)) for _ in range(2)]
            for one in shown:
                one.grad = torch.ones_like(one)
            shown[1].grad[1] = bad
            try:
                norm = clip(shown, 1.0)
            except Exception:  # noqa: BLE001 - one that cannot be tried out is not believed
                return False
            if type(norm) is not torch.Tensor or norm.device.type != "cpu" or math.isfinite(norm.item()):
                return False
    return True


EVERY = 2 * BEAT
"""Steps between two looks at the parameters, and between two rows with the norms of groups of layers. A parameter that
is not finite stays so until it is looked at, and shows in losses and gradients meanwhile; each look costs as much as
one at the gradients."""


class Gradients(Probe):
    """Looks at every gradient right before each optimizer step, and at the trainable tensors before every EVERYth.

    Takes the norm of each, in one fused call per dtype and device: NaN and Inf survive a sum of squares. (The largest
    absolute value would not overflow at 1e19, but takes a CPU 15 times as long.) One transfer per step, at its end.
    `nonfinite` counts tensors here; Finiteness adds the values that are logged. The tag `canary.first_nonfinite` names
    the first bad tensor. If the trainer logs no gradient norm, as TRL's PPOTrainer, `grad_norm` is the largest of the
    row's optimizer steps.

    On a CPU, reading all gradients takes longer than everything else that is measured in a small step. A trainer that
    clips has just taken their norm, and if that is finite (ClipNorm), they are not read again, except at every EVERYth
    step. This needs a trainer that logs a gradient norm at each step, as Transformers' does, and so replaces ours.

    Every EVERYth row also has `grad_norm_early` and so on, the norm of each group of layers as the optimizer sees it:
    after clipping, unlike `grad_norm` from a trainer.
    """

    name = "gradients"
    essential = True

    def __init__(self) -> None:
        self.first = ""
        self._named: list[tuple[str, torch.nn.Parameter]] = []
        self._groups: dict[str, str] = {}  # of each of these parameters, by name
        self._sharded = False
        self._norms: list[torch.Tensor] = []  # of each tensor looked at, by optimizer step
        # Of each optimizer step, the parameters that had a gradient, whose norms come first, and those looked at.
        self._looked_at: list[tuple[list[str], list[str]]] = []
        self._clip_norm = ClipNorm()
        self._clip_norms: list[float] = []  # of the optimizer steps whose gradients were not read
        self._row: Row | None = None  # the last one, and what it was given as `grad_norm`
        self._given = 0.0
        self._replaced: bool | None = None  # whether the trainer has replaced that in every row so far
        self._moves = 0
        self._steps = 0
        self._seen_gradients = False

    def start(self, setting: Setting) -> None:
        self._named = [(name, one) for name, one in setting.model.named_parameters() if one.requires_grad]
        self._groups = groups_of(setting.model, self._named)
        self._sharded = any(hasattr(one, "to_local") for _, one in self._named)
        if not self._sharded:
            self._clip_norm.start(setting.trainer, [one for _, one in self._named])

    def blind(self) -> str:
        kinds = dict.fromkeys((one.dtype, one.device) for _, one in self._named)
        for dtype, device in kinds or {(torch.float32, torch.device("cpu")): None}:
            for bad in (math.nan, math.inf, -math.inf):
                shown = torch.ones(3, dtype=dtype, device=device)
                spoilt = shown.clone()
                spoilt[1] = bad
                if broken_among(["good", "bad"], norms_of([shown, spoilt]).tolist()) != ["bad"]:
                    return f"{bad} in a tensor of {dtype} on {device}"
        return ""

    def before_optimizer(self) -> None:
        norm = self._clip_norm.take()
        if norm is not None and self._moves % EVERY and self._steps % EVERY and self._is_replaced():
            self._moves += 1
            self._clip_norms.append(norm)
        else:
            self._look()

    def _look(self) -> None:
        """Take the norm of each gradient, and of the parameters if it is time."""
        moved = [(name, one.grad) for name, one in self._named if one.grad is not None]
        held = [] if self._moves % EVERY else self._named
        self._moves += 1
        tensors = [tensor for _, tensor in (*moved, *held)]
        if not tensors:
            return
        with torch.no_grad():
            self._norms.append(norms_of([local(tensor) for tensor in tensors] if self._sharded else tensors))
        self._looked_at.append(([name for name, _ in moved], [name for name, _ in held]))

    def step_ended(self, row: Row) -> None:
        self._steps += 1
        lengths, self._clip_norms = self._clip_norms, []
        if self._norms:
            self._read(row, lengths)
        elif lengths:
            row["nonfinite"] = 0.0
            self._give(row, lengths)

    def _read(self, row: Row, lengths: list[float]) -> None:
        """Judge the norms that were taken since the last step's end; `lengths`: of gradients that were not read."""
        found: list[str] = []
        values = torch.cat(self._norms).tolist()
        for gradients, parameters in self._looked_at:
            count = len(gradients) + len(parameters)
            norms, values = values[:count], values[count:]
            if not all(map(math.isfinite, norms)):
                names = [f"gradient of {name}" for name in gradients] + [f"parameter {name}" for name in parameters]
                found += broken_among(names, norms)
            if gradients:
                lengths.append(math.hypot(*norms[: len(gradients)]))
        row["nonfinite"] = float(len(found))
        if found and not self.first:
            self.first = f"step {self._steps}: {found[0]}" + (f" and {len(found) - 1} more" if len(found) > 1 else "")
        if lengths:
            self._give(row, lengths)
            if self._steps % EVERY == 1:
                row.update(self._by_group(gradients, norms))
        self._norms, self._looked_at = [], []

    def _give(self, row: Row, lengths: Sequence[float]) -> None:
        """Add the gradients' norm. One that the trainer logs replaces it: that one is from before clipping."""
        self._seen_gradients = True
        largest = lengths[0] if len(lengths) == 1 else max(lengths, key=lambda length: (math.isnan(length), length))
        self._row, self._given = row, largest
        row.setdefault("grad_norm", largest)

    def _is_replaced(self) -> bool:
        """Whether the trainer has replaced what `_give` added in every row so far; the last one is complete by now."""
        if self._row is not None:
            self._replaced = self._replaced is not False and self._row.get("grad_norm") is not self._given
            self._row = None
        return bool(self._replaced)

    def _by_group(self, gradients: Sequence[str], norms: Sequence[float]) -> Row:
        """The norm of each group that has gradients. What is not finite is left out: `nonfinite` counts it."""
        squares: dict[str, float] = {}
        for name, norm in zip(gradients, norms, strict=False):  # those of the parameters follow
            squares[self._groups[name]] = squares.get(self._groups[name], 0.0) + norm * norm
        return {f"grad_norm_{group}": math.sqrt(one) for group, one in squares.items() if math.isfinite(one)}

    def stop(self) -> None:
        self._clip_norm.stop()

    def tags(self) -> Mapping[str, str]:
        return {tags.FIRST_NONFINITE: self.first}

    def trouble(self) -> str:
        if self._seen_gradients or not self._steps:
            return ""
        return "no gradient was visible before an optimizer step: only losses and parameters were checked"


def groups_of(model: Any, named: Sequence[tuple[str, torch.nn.Parameter]]) -> dict[str, str]:
    """The group of each parameter (LAYER_GROUPS). A layer is known by the first number in the name, as in
    `model.layers.11.mlp`; a quarter of the layers are early, half are middle, a quarter late."""
    embeddings, *parts, head = LAYER_GROUPS
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    embedded = {id(one) for table in tables for one in table.parameters()}
    layers = [next((int(part) for part in name.split(".") if part.isdigit()), None) for name, _ in named]
    last = max((one for one in layers if one is not None), default=0) or 1
    return {
        name: embeddings if id(one) in embedded else head if layer is None else parts[round(2 * layer / last)]
        for (name, one), layer in zip(named, layers, strict=True)
    }


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor: the norm of the whole would need communication with other ranks."""
    shard: Any = getattr(tensor, "to_local", None)
    return tensor if shard is None else shard()


def norms_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The 2-norm of each tensor, in order, as one float32 tensor on the first one's device."""
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault((tensor.dtype, tensor.device), []).append(index)
    if len(groups) == 1:
        return torch.stack(_norms(tensors)).float()
    found: list[torch.Tensor] = [torch.empty(0)] * len(tensors)
    for members in groups.values():
        for index, norm in zip(members, _norms([tensors[index] for index in members]), strict=True):
            found[index] = norm.to(tensors[0].device, torch.float32)
    return torch.stack(found)


def broken_among(names: Sequence[str], norms: Sequence[float]) -> list[str]:
    """The names of the tensors whose norm is not finite."""
    return [name for name, value in zip(names, norms, strict=True) if not math.isfinite(value)]


def _norms(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The norms of tensors of one dtype and device. Fused on CUDA; on a CPU a loop in C++."""
    half = tensors[0].dtype in (torch.float16, torch.bfloat16)  # fp16 ends at 65504, bf16 is too coarse
    norms: tuple[torch.Tensor, ...] = torch._foreach_norm(tensors, 2.0, dtype=torch.float32 if half else None)
    return norms
