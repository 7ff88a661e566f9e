"""The parameters that train: did they move, by how much in each layer, and are they still finite?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from canary_mlflow.gates.facts.exact import DRIFT, FROZEN
from canary_mlflow.tracking.describing.fact_tags import to_tags
from canary_mlflow.tracking.probes import Probe, Setting
from canary_mlflow.tracking.probes.gradients import local


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


MOST = 4_000_000
"""Values of the start that are kept, as float32 on the CPU: 16 MiB, which no limit on memory mistakes for a leak. Of a
larger model each tensor is known by an equal number of its values, drawn by a generator of their own."""
PROBED = 256  # random vectors that a quantized weight is multiplied by
WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "base_model.model.")
OF_ADAPTERS = ("lora_", "base_layer", "modules_to_save", "original_module")
"""How the parts begin that PEFT puts between a layer's name and the names of its weights."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A trained tensor, whose size is its own at the start."""

    names: tuple[str, ...]
    weight: Any

    @property
    def count(self) -> int:
        """The number of its values."""
        return int(local(self.weight).numel())

    def values(self, at: torch.Tensor | None) -> torch.Tensor:
        """Its values at these places, None for all: a copy on the CPU, as float32."""
        held = local(self.weight.detach())
        found = held.reshape(-1) if at is None else held.take(at.to(held.device))
        return found.to("cpu", torch.float32, copy=True)

    def size(self, start: torch.Tensor) -> float:
        """The square of its norm at the start; of a sample, as much of it as these values hold."""
        return squares(start)


@dataclass(frozen=True, kw_only=True)
class Product:
    """What a LoRA adapter adds to a frozen weight: the product of its factors. As it usually starts at 0, its size is
    that of the frozen weight."""

    names: tuple[str, ...]
    module: Any
    left: Any  # [rows, rank]
    right: Any  # [rank, columns]
    scaling: float

    @property
    def count(self) -> int:
        """The number of values of the frozen weight."""
        return int(self.left.shape[0] * self.right.shape[1])

    def values(self, at: torch.Tensor | None) -> torch.Tensor:
        """What is added at these places, None for all."""
        left, right = self.left.detach().float(), self.right.detach().float()
        if at is None:
            found = (left @ right).reshape(-1)
        else:
            place = at.to(left.device)
            found = (left[place // right.shape[1]] * right.T[place % right.shape[1]]).sum(1)
        return self.scaling * found.cpu()

    def size(self, start: torch.Tensor) -> float:
        """The square of the frozen weight's norm; of a sample, the share of it that these values stand for."""
        base = self.module.get_base_layer()
        weight: Any = getattr(base, "weight", None)
        quantized = weight is None or not weight.is_floating_point()
        found = self._size_of_quantized(base) if quantized else squares(weight.detach())
        return found * len(start) / self.count

    def _size_of_quantized(self, base: Any) -> float:
        """The same of weights that only their own layer can read: E‖Wx‖² = ‖W‖² for signs x drawn at random."""
        signs = torch.randint(2, (PROBED, self.right.shape[1]), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
        with torch.no_grad():
            found = base(signs.to(self.left))
        bias = getattr(base, "bias", None)
        return squares(found if bias is None else found - bias) / PROBED


class LayerDrift(Probe):
    """‖end - start‖ / ‖start‖ of each layer, for a run that reaches its end: the facts `layer_drift.…`.

    A layer is a module with a number, such as `model.layers.3`, or else one that holds weights; tied weights count
    once, under the first of their names. 0: not one value has moved. FROZEN: it was not trained. Left out is a layer
    without a size, as it starts at 0, and one of which a sample shows no movement although there was some. Only the
    first rank looks, at its own part of sharded weights, and a resumed run does not know where it started.
    """

    name = "layer_drift"

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters  # knows which tensors did not move
        self._model: Any = None
        self._held: dict[str, list[tuple[Tensor | Product, torch.Tensor | None, torch.Tensor]]] = {}
        self._ended = False
        self._found: dict[str, str] = {}

    def start(self, setting: Setting) -> None:
        if setting.resumed or not setting.first_rank:
            return
        self._model = setting.model
        trained = list(trained_weights(setting.model))
        whole = sum(one.count for _, one in trained) <= MOST
        draw = torch.Generator().manual_seed(0)  # not torch's own, from which training draws
        for layer, one in trained:
            most = one.count if whole else max(1, MOST // len(trained))
            at = torch.randint(one.count, (most,), generator=draw) if one.count > most else None
            self._held.setdefault(layer, []).append((one, at, one.values(at)))

    def ended(self) -> None:
        self._ended = True

    def stop(self) -> None:
        if self._ended and self._model is not None:
            moving: dict[str, bool] = {}
            for name, one in self._model.named_parameters():
                moving[layer_of(name)] = moving.get(layer_of(name), False) or one.requires_grad
            said = {layer: self._drift(layer) if layer in self._held else "" if moves else FROZEN
                    for layer, moves in moving.items()}  # fmt: skip
            self._found = {layer: one for layer, one in said.items() if one}
        self._model, self._held = None, {}

    def _drift(self, layer: str) -> str:
        held = self._held[layer]
        if self._parameters.still.issuperset(name for one, _, _ in held for name in one.names):
            return "0"
        moved = size = 0.0
        for one, at, start in held:
            stands_for = one.count / len(start)  # each value kept
            moved += stands_for * squares(one.values(at) - start)
            size += stands_for * one.size(start)
        share = math.sqrt(moved / size) if size else math.nan
        return f"{share:.6g}" if share and math.isfinite(share) else ""

    def tags(self) -> Mapping[str, str]:
        return to_tags({DRIFT: self._found})


def trained_weights(model: Any) -> Iterator[tuple[str, Tensor | Product]]:
    """(layer, weight) of all that trains and that this rank holds. A layer with an adapter of another kind than LoRA's
    products of two matrices is left out."""
    products = [(layer_of(path), one) for path, module in model.named_modules() for one in products_of(path, module)]
    known = {name for _, one in products for name in one.names}
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad and local(one).numel()}
    odd = {layer_of(name) for name in trained.keys() - known if any(part in name for part in (".lora_A.", ".lora_B."))}
    yield from (found for found in products if found[0] not in odd)
    for name, one in trained.items():
        if name not in known and layer_of(name) not in odd:
            yield layer_of(name), Tensor(names=(name,), weight=one)


def products_of(path: str, module: Any) -> Iterator[Product]:
    """The trained LoRA adapters of a linear layer or an embedding."""
    for kind, suffix in (("lora_", ".weight"), ("lora_embedding_", "")):
        rights, lefts = getattr(module, f"{kind}A", None) or {}, getattr(module, f"{kind}B", None) or {}
        for adapter in sorted(rights.keys() & lefts.keys()):
            left, right = (getattr(one, "weight", one) for one in (lefts[adapter], rights[adapter]))
            sharded = hasattr(left, "to_local")
            trains = left.requires_grad or right.requires_grad
            if trains and left.dim() == 2 == right.dim() and not sharded and hasattr(module, "base_layer"):
                names = tuple(f"{path}.{kind}{factor}.{adapter}{suffix}" for factor in "AB")
                scaling = float(module.scaling[adapter])
                yield Product(names=names, module=module, left=left, right=right, scaling=scaling)


def layer_of(name: str) -> str:
    """The layer of a parameter, or of a module with an adapter: `model.layers.3` of `model.layers.3.mlp.up.weight`."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    parts = name.split(".")
    for at, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: at + 1])
        if part.startswith(OF_ADAPTERS):
            return ".".join(parts[:at])
    return ".".join(parts[:-1]) or name


def squares(values: torch.Tensor) -> float:
    """The sum of the squares."""
    exact = torch.float32 if values.device.type == "mps" else torch.float64
    return float(torch.linalg.vector_norm(values, dtype=exact)) ** 2
