"""PPO: a rollout changes no weight, so a fixed batch has the same gradient before and after it."""

from __future__ import annotations

from typing import Any

import torch

from canary_mlflow.tracking.probes import Setting
from canary_mlflow.tracking.probes.invariants import Invariant, drops_out

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
