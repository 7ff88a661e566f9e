"""The library's log-probability, KL and entropy match their definitions: checked with fixed numbers at the start."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from canary_mlflow.tracking.probes import Setting
from canary_mlflow.tracking.probes.invariants import Invariant

TOLERANCE = 1e-4  # relative to 1; float32 gives 1e-7, a chunked or fused kernel 1e-6
ROWS, VOCABULARY = 7, 29

# Names of these functions in trainers' modules: from logits [R, V] and tokens [R] to [R], and from logits alone.
LOG_PROBABILITY = ("selective_log_softmax", "token_logps")
ENTROPY = ("entropy_from_logits", "token_entropy")
SHARED = "trl.trainer.utils"  # where TRL keeps them


class Definitions(Invariant):
    """Recomputes in float64, from the definitions, log p(token), its mean difference between two models (the k1
    estimate of KL), and entropy in nats. This tells a library that redefines a metric from training that changed.
    """

    name = "definitions"

    def start(self, setting: Setting) -> None:
        homes = [sys.modules.get(type(setting.trainer).__module__), sys.modules.get(SHARED)]
        for name, compute in functions(homes, LOG_PROBABILITY).items():
            self._check_log_probability(name, compute)
        for name, compute in functions(homes, ENTROPY).items():
            found = compute(fixture(0)).double()
            self._compare(f"{name} (entropy)", found, entropy(fixture(0)))

    def _check_log_probability(self, name: str, compute: Callable[..., torch.Tensor]) -> None:
        policy, reference, tokens = fixture(0), fixture(1), torch.arange(ROWS) * 3 % VOCABULARY
        exact = log_probability(policy, tokens), log_probability(reference, tokens)
        found = compute(policy, tokens).double(), compute(reference, tokens).double()
        self._compare(f"{name} (log-probability)", found[0], exact[0])
        self._compare(f"{name} (KL)", (found[0] - found[1]).mean(), (exact[0] - exact[1]).mean())

    def _compare(self, what: str, found: torch.Tensor, exact: torch.Tensor) -> None:
        same = found.shape == exact.shape and bool(((found - exact).abs() <= TOLERANCE * (1 + exact.abs())).all())
        self.hold(
            same,
            f"{what} gives {float(found.mean()):.6g} on fixed logits where its definition gives "
            f"{float(exact.mean()):.6g}: the library means something else by it",
        )


def functions(homes: list[ModuleType | None], names: tuple[str, ...]) -> dict[str, Callable[..., Any]]:
    """The functions with these names that the modules have, by full name, each once."""
    found = {}
    for home in homes:
        for name in names:
            function = getattr(home, name, None)
            if callable(function):
                found[f"{function.__module__}.{name}"] = function
    return found


def fixture(number: int) -> torch.Tensor:
    """Logits [ROWS, VOCABULARY] that are the same on every machine, because they use no random numbers."""
    grid = torch.arange(ROWS * VOCABULARY, dtype=torch.float64).reshape(ROWS, VOCABULARY)
    return (3 * torch.sin(grid * (0.7 + 0.4 * number)) + torch.cos(grid / 5)).float()


def log_probability(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """log p(token) [R], in nats."""
    weights = logits.double().exp()
    chosen = weights[torch.arange(len(tokens)), tokens]
    return (chosen / weights.sum(-1)).log()


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """- sum p log p [R], in nats; at most log V."""
    shares = logits.double().exp()
    shares = shares / shares.sum(-1, keepdim=True)
    found = -(shares * shares.log()).sum(-1)
    assert float(found.max()) <= math.log(VOCABULARY)
    return found
