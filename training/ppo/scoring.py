"""Runs policy, reference and value head over finished answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from training.ppo.actor_critic import ActorCritic, response_logits
from training.ppo.losses import token_entropy, token_logps
from training.ppo.rollout import Scored, attention_mask_of
from training.rewards import Answers


@torch.no_grad()
def score_answers(
    model: ActorCritic,
    reference: Any,
    answers: Answers,
    *,
    rows: int,
    temperature: float,
    autocast: Callable[[], AbstractContextManager[None]],
) -> Scored:
    """Log-probabilities, values and entropy [R, T], computed in micro-batches of `rows`.

    Computed with the update's own shape, padding and code, so that the first ratio is exactly 1; the log-probabilities
    seen while sampling are off by up to 1e-6 (bf16: 2e-3). reference is None if the policy with its adapters disabled
    is the reference.
    """
    input_ids = torch.cat([answers.prompt_ids, answers.response_ids], dim=1)
    mask = attention_mask_of(answers)
    parts: list[tuple[torch.Tensor, ...]] = []
    for index in torch.arange(len(input_ids), device=mask.device).split(rows):
        responses = answers.response_ids[index]
        inputs = (input_ids[index], mask[index], responses.shape[1])
        # Nothing autocasts by itself outside the prepared module, and without it the first KL would not be 0.
        with autocast():
            logits, values = model(*inputs)
        old_logps, entropy = token_logps(logits, responses, temperature), token_entropy(logits, temperature)
        del logits  # before the reference's are made: each is as large as a small model
        with autocast():
            base = _reference_logits(model, reference, inputs)
        parts.append((old_logps, token_logps(base, responses, temperature), values, entropy))
    old_logps, ref_logps, values, entropy = (torch.cat(column) for column in zip(*parts, strict=True))
    return Scored(old_logps=old_logps, ref_logps=ref_logps, values=values, entropy=entropy)


def _reference_logits(model: ActorCritic, reference: Any, inputs: tuple[torch.Tensor, torch.Tensor, int]) -> Any:
    if reference is not None:
        return response_logits(reference, *inputs)
    with model.policy.disable_adapter():
        return response_logits(model.policy, *inputs)
