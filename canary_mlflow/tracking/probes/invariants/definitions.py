"""What a library computes is what its definition says: log-probability, KL, entropy, the loss of a reward model."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from canary_mlflow.tracking.probes import Setting
from canary_mlflow.tracking.probes.invariants import Invariant, is_coarse

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


class PairLoss(Invariant):
    """With margins m between chosen and rejected scores the loss is the mean of ln(1 + exp(-m)), which lies between
    ln 2 - m / 2 and that plus m^2 / 8. The row has the mean margin, and the scores' range bounds every m.

    Checked at the first optimizer step, whose scores all come from the new head. Does not apply to several
    micro-batches, whose ranges the trainer averages, nor to margins from the data or centred rewards.
    """

    name = "pair loss"

    def __init__(self) -> None:
        super().__init__()
        self._applies = False
        self._rounding = TOLERANCE

    def start(self, setting: Setting) -> None:
        given = setting.arguments
        alone = given.get("gradient_accumulation_steps") == 1 and setting.ranks == 1
        data = getattr(setting.trainer, "train_dataset", None)
        plain = given.get("center_rewards_coefficient") is None and "margin" not in (
            getattr(data, "column_names", None) or ()
        )
        self._applies = setting.algo == "reward" and alone and plain and not setting.resumed
        self._rounding = 100 * TOLERANCE if is_coarse(setting) else TOLERANCE

    def over(self) -> bool:
        return not self._applies

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        names = ("loss", "reward_margin", "trl/max_reward", "trl/min_reward")
        if not self._applies or step < 1:
            return
        self._applies = False
        loss, margin, highest, lowest = (row.get(name, math.nan) for name in names)
        if not all(map(math.isfinite, (loss, margin, highest, lowest))):
            return
        least = math.log(2) - margin / 2
        most = least + (highest - lowest) ** 2 / 8
        self.hold(
            least - self._rounding <= loss <= most + self._rounding,
            f"the reward model's first loss is {loss:.6g}; scores with a mean margin of {margin:.3g} and a range of "
            f"{highest - lowest:.3g} give {least:.6g} to {most:.6g}: the loss is not that of pairs",
        )
