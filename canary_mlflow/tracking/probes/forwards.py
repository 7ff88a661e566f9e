"""A hook on the forward passes that are trained on; it ignores evaluation, generation and reference models."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

# (inputs by parameter name, output)
Seen = Callable[[dict[str, Any], Any], None]


class ForwardHook:
    """Calls `seen` after each forward pass of `model` that is trained on, `evaluated` after those in evaluation mode.

    A pass is trained on when the module is in training mode and gradients are on: evaluation, generation (GRPO, PPO)
    and the reference pass of a policy whose adapters are switched off all run without.
    """

    def __init__(self, model: Any, seen: Seen, evaluated: Seen | None = None) -> None:
        names = list(inspect.signature(model.forward).parameters)

        def after(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            call = (seen if torch.is_grad_enabled() else None) if module.training else evaluated
            if call is not None:
                call({**dict(zip(names, args, strict=False)), **kwargs}, output)

        self._handle = model.register_forward_hook(after, with_kwargs=True)

    def remove(self) -> None:
        """Remove the hook and leave the model as it was."""
        self._handle.remove()
