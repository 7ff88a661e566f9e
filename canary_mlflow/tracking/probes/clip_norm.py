"""The norm that a trainer takes of all gradients in order to clip them: if it is finite, so is every gradient."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter, is_
from typing import Any

import torch

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

        setattr(owner, METHOD, caught)
        accelerator = weakref.ref(owner)  # whoever holds the run's journal must not keep it alive

        def undo() -> None:
            if (held := accelerator()) is not None and vars(held).get(METHOD) is caught:
                delattr(held, METHOD)

        self._undo = undo

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
