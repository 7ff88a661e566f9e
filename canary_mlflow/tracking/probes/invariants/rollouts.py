"""Rollouts: answers come from the distribution that is trained, and drawing them changes no weight."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from canary_mlflow.tracking.probes import Row, Setting
from canary_mlflow.tracking.probes.hooks import replace_method
from canary_mlflow.tracking.probes.invariants import Invariant, drops_out, is_coarse
from canary_mlflow.tracking.probes.invariants.beginnings import steps_on_answers

TOKENS = 8  # of the fixed batch: one row, ids 0, 1, 2, …
TOLERANCE = 1e-3  # of the whole gradient's norm; the same pass twice gives 0, weights repacked for inference 2 %


class RolloutGradient(Invariant):
    """Compares the gradient norm of every trained parameter before the first rollout and after it.

    A rollout is the only part of a PPO iteration in eval() mode, in which libraries convert frozen weights for speed.
    No loss or ratio shows what they change, because old and new log-probabilities share it.
    """

    name = "rollout gradient"

    def __init__(self) -> None:
        super().__init__()
        self._policy: Any = None  # None: the invariant does not apply, or was already checked
        self._before: torch.Tensor | None = None

    def start(self, setting: Setting) -> None:
        policy = getattr(setting.model, "policy", None)
        plain = setting.ranks == 1 and not setting.compiled and not drops_out(setting.model)
        if setting.algo == "ppo" and setting.iterates and plain and hasattr(policy, "get_input_embeddings"):
            self._policy = policy

    def over(self) -> bool:
        return self._policy is None

    def rollout_begins(self) -> None:
        if self._policy is not None and self._before is None:
            try:
                self._before = gradient_norms(self._policy)
            except RuntimeError:  # the model's forward pass needs more inputs: nothing to compare
                self._policy = None

    def rollout_ended(self) -> None:
        if self._policy is None or self._before is None:
            return
        policy, self._policy = self._policy, None
        try:
            after = gradient_norms(policy)
        except RuntimeError as error:
            self.hold(False, f"after the first rollout a fixed batch has no gradient any more: {error}")
            return
        off = float((after - self._before).norm() / self._before.norm().clamp(min=1e-30))
        self.hold(
            off <= TOLERANCE,
            f"the first rollout changed the gradient of a fixed batch by {off:.2g} of its norm (from "
            f"{float(self._before.norm()):.4g} to {float(after.norm()):.4g}); it must change nothing: something "
            "converted weights while the model was in eval mode",
        )


def gradient_norms(policy: Any) -> torch.Tensor:
    """The norm [N] of each trained parameter's gradient, in training mode; leaves modes and gradients as they were."""
    weight = policy.get_input_embeddings().weight
    ids = (torch.arange(TOKENS, device=weight.device) % weight.shape[0]).unsqueeze(0)
    modes = [(module, module.training) for module in policy.modules()]
    trained = [one for one in policy.parameters() if one.requires_grad]
    try:
        policy.train()
        with torch.enable_grad():
            logits = policy(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits[0, :-1].float(), ids[0, 1:])
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
    finally:
        for module, mode in modes:
            module.training = mode
    return torch.stack([torch.zeros(()) if one is None else one.detach().double().norm().cpu() for one in gradients])


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

            self._undo = replace_method(trainer, SCORE, seen)

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
