"""From prompts to answers, in a rollout and in an evaluation: sampled with a KV cache, from keyed noise only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from canary_mlflow.training.datasets.chats import ids_of
from canary_mlflow.training.errors import InstabilityError, SetupError
from canary_mlflow.training.ppo.actor_critic import position_ids_of
from canary_mlflow.training.ppo.settings import PPOConfig
from canary_mlflow.training.rewards import Answers, Reward


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

    class Cache(StaticCache):
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


class Answerer:
    """Draws answers with one tokenizer, one set of knobs and one sampler."""

    def __init__(self, tokenizer: Any, args: PPOConfig, sampler: Sampler) -> None:
        if tokenizer.eos_token_id is None:
            raise SetupError("the tokenizer has no end-of-text token; expected one, for answers to end with")
        self.spec = SamplingSpec(
            max_new_tokens=args.max_new_tokens,
            temperature=args.temperature,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        )
        self._tokenizer, self._max_prompt_length, self._sampler = tokenizer, args.max_prompt_length, sampler

    def prompts(self, given: Sequence[Any]) -> Prompts:
        """Tokenize texts, or rows of data with a prompt each, once."""
        return Prompts(given, self._tokenizer, self._max_prompt_length, self.spec.pad_token_id)

    def answer(
        self,
        policy: Any,
        prompts: Prompts,
        rows: Sequence[int],
        generator: torch.Generator,
        *,
        step: int,
    ) -> Answers:
        """Draw one answer to each of the prompts in `rows`; an InstabilityError names `step`."""
        prompt_ids, prompt_mask = prompts.batch(rows, generator.device)
        responses = self._sampler(policy, prompt_ids, prompt_mask, self.spec, generator, step)
        return Answers(
            prompt_ids=prompt_ids,
            prompt_mask=prompt_mask,
            response_ids=responses,
            response_mask=response_mask_of(responses, self.spec.eos_token_id),
            rows=[prompts.given[row] for row in rows],
        )

    def ended(self, answers: Answers) -> torch.Tensor:
        """Which answers [R] contain an end of text."""
        return (answers.response_ids == self.spec.eos_token_id).any(1)


def score_all(
    answer: Callable[[Sequence[int]], Answers], reward: Reward, rows: Sequence[int], batch: int
) -> torch.Tensor:
    """Sums [3] over the rows, a batch at a time: scores, answer tokens, answers. In float64, to add over ranks."""
    sums = torch.zeros(3, dtype=torch.float64)
    for first in range(0, len(rows), batch):
        answers = answer(rows[first : first + batch])
        scores, lengths = reward(answers), answers.response_mask.sum()
        sums = sums.to(scores.device)
        sums += torch.stack([scores.double().sum(), lengths.double(), lengths.new_tensor(len(scores)).double()])
    return sums
