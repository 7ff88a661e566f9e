"""Sampling answers with a KV cache, from keyed noise and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from training.datasets.chats import ids_of
from training.errors import InstabilityError, SetupError
from training.ppo.actor_critic import position_ids_of


@dataclass(frozen=True, kw_only=True)
class SamplingSpec:
    """How answers are drawn: at a temperature, until end of text or max_new_tokens."""

    max_new_tokens: int
    temperature: float
    eos_token_id: int
    pad_token_id: int


# (policy, prompt ids [R, P], prompt mask [R, P], spec, generator, optimizer step) -> answers [R, T].
Sampler = Callable[..., torch.Tensor]


@torch.no_grad()
def sample(
    policy: Any,
    prompt_ids: torch.Tensor,
    prompt_mask: torch.Tensor,
    spec: SamplingSpec,
    generator: torch.Generator,
    step: int,
) -> torch.Tensor:
    """Draw one answer [R, T] per left-padded prompt [R, P]; T is the longest, at most max_new_tokens.

    After its end a row holds pad_token_id. A loop of our own rather than generate(): fields left
    unset in an explicit GenerationConfig are filled from the model's (a repetition penalty, say),
    which would make the sampled and the scored distribution differ. InstabilityError when logits
    are not numbers; on a GPU, sampling from them would poison the device context.
    """
    finished = torch.zeros(len(prompt_ids), dtype=torch.bool, device=prompt_ids.device)
    tokens, mask, cache = prompt_ids, prompt_mask.long(), None
    positions = position_ids_of(mask)
    answers: list[torch.Tensor] = []
    while len(answers) < spec.max_new_tokens:
        output = policy(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        logits = output.logits[:, -1].float()
        # The row maximum is NaN or +inf exactly when a row cannot be sampled from; -inf alone is a mask.
        if not torch.isfinite(logits.amax(-1)).all():
            raise InstabilityError(step, f"the policy's logits for answer token {len(answers) + 1} are not finite")
        drawn = torch.multinomial((logits / spec.temperature).softmax(-1), 1, generator=generator)
        drawn = drawn.masked_fill(finished.unsqueeze(1), spec.pad_token_id)
        answers.append(drawn)
        finished |= drawn.squeeze(1) == spec.eos_token_id
        if bool(finished.all()):
            break
        tokens = drawn
        mask = torch.cat([mask, torch.ones_like(drawn)], dim=1)
        positions = positions[:, -1:] + 1
    return torch.cat(answers, dim=1)


def response_mask_of(responses: torch.Tensor, eos_token_id: int) -> torch.Tensor:
    """True [R, T] up to and including the first end of text, by position: padding may be the same token."""
    ended = (responses == eos_token_id).long().cumsum(1)
    return (ended - (responses == eos_token_id).long()) == 0


class Prompts:
    """Tokenized prompts, cut from the left, served as left-padded batches."""

    def __init__(self, given: Sequence[Any], tokenizer: Any, max_length: int, pad_token_id: int) -> None:
        if not len(given):
            raise SetupError("the data set has no prompts; expected at least 1")
        self.given = [one if isinstance(one, Mapping) else {"prompt": one} for one in given]
        prompts = [one["prompt"] for one in self.given]
        self.pad_token_id = pad_token_id
        self.rows: list[list[int]] = [list(ids)[-max_length:] for ids in ids_of(prompts, tokenizer)]
        for number, ids in enumerate(self.rows):
            if not ids:
                raise SetupError(f"prompt {number + 1} has no tokens; expected at least 1")

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Sequence[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids [R, P] and their boolean mask [R, P] for the given row numbers."""
        chosen = [self.rows[row] for row in rows]
        width = max(len(ids) for ids in chosen)
        padded = [[self.pad_token_id] * (width - len(ids)) + ids for ids in chosen]
        seen = [[False] * (width - len(ids)) + [True] * len(ids) for ids in chosen]
        return torch.tensor(padded, device=device), torch.tensor(seen, device=device)
