"""GRPO and RLOO: the answers come from the distribution whose log-probabilities are trained."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from canary_mlflow.tracking.probes import Row, Setting
from canary_mlflow.tracking.probes.invariants import Invariant, drops_out, is_coarse
from canary_mlflow.tracking.probes.invariants.fresh_answers import steps_on_answers

NAME = "sampling_mismatch"
SCORE = "_get_per_token_logps_and_entropies"  # in TRL's trainers: ids and mask to log-probabilities and entropies
FAR = 6.0  # standard errors: by chance once in 10^9 checks
NATS, COARSE = 0.02, 0.1  # per token; less is not worth a report
PLAIN = {"top_p": (1.0, None), "top_k": (0, -1, None), "min_p": (0.0, None), "repetition_penalty": (1.0, None),
         "generation_kwargs": (None,), "mask_truncated_completions": (False, None)}  # fmt: skip
"""Under these values the trained distribution is the one that answers are drawn from; others cut it on purpose."""


class SampledPolicy(Invariant):
    """For tokens drawn from p, log p(token) is minus the entropy of p in expectation, whatever p is.

    So the mean of log-probability + entropy over fresh answers is the mismatch between sampling and training, in nats
    per token, without a record of the sampler's values: a temperature missing on one side, weights that did not reach
    the sampler, tokens shifted by one. The terms are martingale differences, so their squares add up to the variance
    of their sum. Each row gets its mean as `sampling_mismatch`; the sum over the run is judged.
    """

    name = "sampled policy"

    def __init__(self) -> None:
        super().__init__()
        self._every = 0
        self._least = NATS
        self._steps = 0  # steps begun
        self._new = torch.zeros(3, dtype=torch.float64)  # number of tokens, sum and sum of squares of this step
        self._all = torch.zeros(3, dtype=torch.float64)
        self._undo: Callable[[], None] | None = None

    def start(self, setting: Setting) -> None:
        given, trainer = setting.arguments, setting.trainer
        plain = all(given.get(name) in usual for name, usual in PLAIN.items())
        if setting.algo not in ("grpo", "rloo") or not plain or drops_out(setting.model) or setting.ranks > 1:
            return
        if not hasattr(trainer, SCORE) or SCORE in vars(trainer) or getattr(trainer, "tools", None):
            return
        self._every, self._least = steps_on_answers(given), COARSE if is_coarse(setting) else NATS
        if self._every:
            score = getattr(trainer, SCORE)

            def seen(model: Any, ids: Any, mask: Any, kept: int, *more: Any, **named: Any) -> Any:
                found = score(model, ids, mask, kept, *more, **named)
                if torch.is_grad_enabled() and found[1] is not None and self._fresh:
                    self._add(found[0], found[1], mask[:, -kept:])
                return found

            setattr(trainer, SCORE, seen)
            # Weak: whoever holds the run's journal must not keep alive a trainer that nobody else uses.
            self._undo = partial(forget, weakref.ref(trainer))

    def over(self) -> bool:
        return not self._every

    def _add(self, logps: Any, entropies: Any, mask: Any) -> None:
        kept = mask.bool()
        off = (logps.detach()[kept] + entropies.detach()[kept]).double()
        self._new += torch.stack([off.new_tensor(float(off.numel())), off.sum(), off.square().sum()]).cpu()

    @property
    def _fresh(self) -> bool:
        """Whether the current step is the first on its answers."""
        return (self._steps - 1) % self._every == 0

    def rollout_ended(self) -> None:
        self._steps += 1

    def step_ended(self, row: Row) -> None:
        if not self._new[0]:
            return
        self._all += self._new
        row[NAME] = float(self._new[1] / self._new[0])
        self._new = torch.zeros_like(self._new)
        tokens, total, squares = self._all.tolist()
        if not math.isfinite(total):
            return
        mean, far = total / tokens, abs(total) / math.sqrt(squares) if squares else 0.0
        self.hold(
            far <= FAR or abs(mean) <= self._least,
            f"after step {self._steps} the log-probabilities of the answers differ from what drawing from the trained "
            f"policy gives by {mean:.3g} nats per token ({far:.0f} standard errors): sampling and training disagree "
            "about temperature, weights or tokens",
        )

    def stop(self) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None


def forget(trainer: Callable[[], Any]) -> None:
    """Restore the trainer's own scoring method."""
    owner = trainer()
    if owner is not None and SCORE in vars(owner):
        delattr(owner, SCORE)
