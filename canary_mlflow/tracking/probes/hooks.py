"""How probes listen in on a trainer: a hook on the forward passes that are trained on, and methods of its objects that
are replaced until the training ends."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch

# (inputs by parameter name, output); what it is given is not its own to change
Seen = Callable[[dict[str, Any], Any], None]


class ForwardHook:
    """Calls `seen` after each forward pass of `model` that is trained on, `evaluated` after those in evaluation mode.

    A pass is trained on when the module is in training mode and gradients are on: evaluation, generation (GRPO, PPO)
    and the reference pass of a policy whose adapters are switched off all run without. All hooks on one model share one
    of torch's, which tells them all: each of torch's costs a small step 10 µs.
    """

    def __init__(self, model: Any, seen: Seen, evaluated: Seen | None = None) -> None:
        shared = _SHARED.get(model)
        if shared is None:
            shared = _SHARED[model] = _Shared(model)
        self._shared, self._told = shared, (seen, evaluated)
        shared.told = [*shared.told, self._told]

    def remove(self) -> None:
        """Remove the hook; the last one of a model leaves it as it was."""
        self._shared.told = [one for one in self._shared.told if one is not self._told]
        if not self._shared.told:
            self._shared.remove()


class _Shared:
    """Torch's hook on one model, and who is told of its passes, in order."""

    def __init__(self, model: Any) -> None:
        self.told: list[tuple[Seen, Seen | None]] = []
        names = list(inspect.signature(model.forward).parameters)

        def after(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            trains = module.training
            if trains and not torch.is_grad_enabled():
                return
            inputs = {**dict(zip(names, args, strict=False)), **kwargs} if args else kwargs
            for seen, evaluated in self.told:
                if trains:
                    seen(inputs, output)
                elif evaluated is not None:
                    evaluated(inputs, output)

        self._handle = model.register_forward_hook(after, with_kwargs=True)
        self._model = ref(model)

    def remove(self) -> None:
        self._handle.remove()
        model = self._model()
        if model is not None and _SHARED.get(model) is self:
            del _SHARED[model]


_SHARED: WeakKeyDictionary[Any, _Shared] = WeakKeyDictionary()


def replace_method(owner: Any, name: str, new: Any) -> Callable[[], None]:
    """Put `new` before the method of this name of one object; returns what takes it away again. Where several did, all
    go with the first: their training is over.

    The object is held weakly: whoever holds the run's journal must not keep a trainer alive that nobody else uses.
    """
    before, held = vars(owner).get(name), ref(owner)
    new.replaced = getattr(before, "replaced", before)  # what somebody else had put there
    setattr(owner, name, new)

    def undo() -> None:
        mine = held()
        now: Any = None if mine is None else vars(mine).get(name)
        if hasattr(now, "replaced"):
            delattr(mine, name)
            if now.replaced is not None:
                setattr(mine, name, now.replaced)

    return undo
