"""Sampling answers with a KV cache, from keyed noise only."""

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


LOOK_EVERY = 16  # tokens between two looks at what a GPU drew: each look makes the host wait for the GPU


@torch.no_grad()
def sample(
    policy: Any,
    prompt_ids: torch.Tensor,
    prompt_mask: torch.Tensor,
    spec: SamplingSpec,
    generator: torch.Generator,
    step: int,
    as_on_gpu: bool | None = None,
) -> torch.Tensor:
    """Draw one answer [R, T] per left-padded prompt [R, P]; T is the longest, at most max_new_tokens.

    After its end a row holds pad_token_id. A loop of our own instead of generate(), which fills fields left unset in an
    explicit GenerationConfig from the model's (a repetition penalty, say), so that the sampled and the scored
    distribution would differ. Raises InstabilityError if logits are NaN or infinite; sampling from them would poison
    the device context of a GPU. as_on_gpu: use a cache of fixed size and look rarely at what was drawn (None: if the
    prompts are on a GPU).
    """
    as_on_gpu = prompt_ids.is_cuda if as_on_gpu is None else as_on_gpu
    every = LOOK_EVERY if as_on_gpu else 1
    width, room = prompt_ids.shape[1], spec.max_new_tokens
    tokens, cache = prompt_ids, _fixed_cache(policy, width + room) if as_on_gpu else None
    mask = torch.cat([prompt_mask.long(), prompt_mask.new_ones((len(prompt_ids), room), dtype=torch.long)], dim=1)
    positions = position_ids_of(mask[:, :width])
    finished = torch.zeros(len(prompt_ids), dtype=torch.bool, device=prompt_ids.device)
    answers: list[torch.Tensor] = []
    sound: list[torch.Tensor] = []
    while len(answers) < room:
        output = policy(
            input_ids=tokens,
            attention_mask=mask[:, : width + len(answers)],
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        logits = output.logits[:, -1].float()
        # The row maximum is NaN or +inf exactly if a row cannot be sampled from; -inf below it only masks.
        finite = torch.isfinite(logits.amax(-1, keepdim=True))
        sound.append(finite.all())
        tokens = torch.multinomial(
            (logits / spec.temperature).softmax(-1).masked_fill(~finite, 1.0), 1, generator=generator
        ).masked_fill(finished.unsqueeze(1), spec.pad_token_id)
        answers.append(tokens)
        finished = finished | (tokens.squeeze(1) == spec.eos_token_id)
        positions = positions[:, -1:] + 1
        if len(answers) % every == 0 or len(answers) == room:
            _require_sound(sound, len(answers) - len(sound), step)
            sound.clear()
            if bool(finished.all()):
                break
    drawn = torch.cat(answers, dim=1)
    return drawn[:, : int(response_mask_of(drawn, spec.eos_token_id).sum(1).max())]


def _fixed_cache(policy: Any, length: int) -> Any:
    """A cache of keys and values of full size from the start, if the model's code supports it: a growing cache is
    copied at each token."""
    from transformers import StaticCache

    class Cache(StaticCache):  # type: ignore[misc]
        """Under autocast keys leave their rotation in float32 and values stay in bf16; attention takes both in bf16."""

        def update(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **named: Any) -> Any:
            return super().update(keys.to(values.dtype), values, *args, **named)

    able = getattr(policy, "_can_compile_fullgraph", False)  # how Transformers marks models that accept this cache
    return Cache(config=policy.config, max_cache_len=length) if able else None


def _require_sound(sound: Sequence[torch.Tensor], before: int, step: int) -> None:
    """Raise InstabilityError if a token's logits were NaN or infinite. `sound`: one flag per token after `before`."""
    flags = torch.stack(list(sound)).tolist()
    if not all(flags):
        raise InstabilityError(
            step, f"the policy's logits for answer token {before + flags.index(False) + 1} are not finite"
        )


def response_mask_of(responses: torch.Tensor, eos_token_id: int) -> torch.Tensor:
    """A mask [R, T], true up to and including the first end of text; by position, as padding may be the same token."""
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
