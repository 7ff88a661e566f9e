"""From prompts to answers: what a rollout and an evaluation have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from training.errors import SetupError
from training.ppo.generation import Prompts, Sampler, SamplingSpec, response_mask_of
from training.ppo.settings import PPOConfig
from training.rewards import Answers, Reward


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
