"""The training data of PPO: each pass over the loader makes a rollout and serves it for the updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from training.ppo.keys import Stream, numpy_stream
from training.ppo.losses import Reduce
from training.ppo.rollout import Rollout
from training.ppo.settings import PPOConfig


class RolloutLoader:
    """Yields micro-batches; one pass is one iteration.

    Never pass it to accelerator.prepare: that loader fetches one batch ahead, so every rollout would be one optimizer
    step stale, without any error (measured: |log ratio| .07 on the first update).
    """

    def __init__(
        self, args: PPOConfig, collect: Callable[[int], Rollout], key: tuple[int, int], reduce: Reduce
    ) -> None:
        self.args = args
        self.collect = collect
        self.key = key  # (seed, rank)
        self.reduce = reduce
        self.iteration = 0

    def __len__(self) -> int:
        return self.args.micro_batches_per_iteration

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer with the iteration that comes next, also after a resume."""
        self.iteration = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rollout = self.collect(self.iteration)
        parts = self._minibatches(rollout)
        # The losses divide by the tokens of a whole minibatch, over all ranks.
        counts = torch.stack(
            [torch.stack([rollout.policy_mask[part].sum(), rollout.value_mask[part].sum()]) for part in parts]
        )
        for part, tokens in zip(parts, self.reduce(counts).unbind(), strict=True):
            for index in part.chunk(self.args.gradient_accumulation_steps):
                yield {**rollout.rows(index), "policy_tokens": tokens[0], "value_tokens": tokens[1]}

    def _minibatches(self, rollout: Rollout) -> list[torch.Tensor]:
        """Row numbers of every minibatch of the iteration, reshuffled in each PPO epoch."""
        seed, rank = self.key
        random = numpy_stream(seed, Stream.MINIBATCHES, self.iteration, rank)
        parts: list[torch.Tensor] = []
        for _ in range(self.args.ppo_epochs):
            order = torch.from_numpy(random.permutation(len(rollout.scores))).to(rollout.scores.device)
            parts += order.chunk(self.args.num_minibatches)
        return parts
