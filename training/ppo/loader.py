"""The training data of PPO: each pass over the loader makes a rollout and serves it for the updates.

Random streams are keyed by their purpose, so that nothing else a run does can shift them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

import numpy as np
import torch

from canary_mlflow.training.ppo.losses import Reduce
from canary_mlflow.training.ppo.rollout import Rollout
from canary_mlflow.training.ppo.settings import PPOConfig


class Stream(IntEnum):
    """What a stream of random numbers is for."""

    PROMPTS = 0
    SAMPLING = 1
    MINIBATCHES = 2
    EVALUATION = 3


def numpy_stream(seed: int, stream: Stream, *key: int) -> np.random.Generator:
    """A NumPy generator that depends only on these arguments."""
    return np.random.default_rng(np.random.SeedSequence([seed, int(stream), *key]))


def torch_stream(device: torch.device, seed: int, stream: Stream, *key: int) -> torch.Generator:
    """A torch generator on `device` that depends only on these arguments."""
    state = np.random.SeedSequence([seed, int(stream), *key]).generate_state(1, np.uint64)[0]
    return torch.Generator(device=device).manual_seed(int(state >> np.uint64(1)))


def prompt_rows(seed: int, iteration: int, *, rank: int, world: int, rows: int, total: int) -> list[int]:
    """Which of total prompts this rank answers in this iteration: every prompt once per pass, reshuffled."""
    first = (iteration * world + rank) * rows
    orders = {
        number: numpy_stream(seed, Stream.PROMPTS, number).permutation(total)
        for number in range(first // total, (first + rows - 1) // total + 1)
    }
    return [int(orders[i // total][i % total]) for i in range(first, first + rows)]


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
