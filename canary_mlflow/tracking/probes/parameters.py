"""Did the trainable parameters move, and are they still finite?"""

from __future__ import annotations

import math
from typing import Any

import torch

from canary_mlflow.tracking.probes import Probe, Setting


class Parameters(Probe):
    """Sum and norm of every trainable tensor at the beginning and at the end: cheap, and exact enough.

    Equal bits on the same device mean an untouched tensor; `still` has the names of those. `moved` and `finite` are
    None until training has ended, and if a rank holds no whole parameters.
    """

    name = "parameters"
    essential = True

    def __init__(self) -> None:
        self.moved: bool | None = None
        self.finite: bool | None = None
        self.still: frozenset[str] = frozenset()
        self._model: Any = None
        self._before: dict[str, tuple[float, float]] = {}
        self._after: dict[str, tuple[float, float]] = {}

    def start(self, setting: Setting) -> None:
        self._model = setting.model
        self._before = fingerprints(setting.model)

    def blind(self) -> str:
        for bad in (math.nan, math.inf):
            model, watcher = torch.nn.Linear(2, 2), type(self)()
            watcher._model, watcher._before = model, fingerprints(model)
            torch.nn.init.constant_(model.bias, bad)
            watcher.stop()
            if watcher.finite is not False or watcher.moved is not True:
                return f"{bad} in a parameter"
        return ""

    def stop(self) -> None:
        if self._model is None or not self._before:
            return
        after = self._after = fingerprints(self._model)
        self.finite = all(math.isfinite(value) for pair in after.values() for value in pair)
        # Compared as text, in which NaN equals NaN.
        self.still = frozenset(name for name, pair in self._before.items() if repr(pair) == repr(after.get(name)))
        self.moved = not self.still == self._before.keys() == after.keys()

    def as_at_the_end(self, model: Any) -> bool | None:
        """After stop: whether the model's trainable tensors are still those that the training ended with; None for a
        model with others. By their norms, which a move to another device does not change beyond its rounding."""
        now = {} if model is None else fingerprints(model)
        if not now or now.keys() != self._after.keys():
            return None
        return all(math.isclose(norm, self._after[name][1], rel_tol=1e-6) for name, (_, norm) in now.items())


def fingerprints(model: Any) -> dict[str, tuple[float, float]]:
    """Two numbers for each trainable tensor, by name; one transfer from the device."""
    names, numbers = [], []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.numel():
                exact = torch.float32 if parameter.device.type == "mps" else torch.float64
                names.append(name)
                numbers.append(parameter.detach().sum(dtype=exact))
                numbers.append(torch.linalg.vector_norm(parameter.detach(), dtype=exact))
    if not numbers:
        return {}
    values = torch.stack([number.to(numbers[0].device) for number in numbers]).tolist()
    return dict(zip(names, zip(values[::2], values[1::2], strict=True), strict=True))
