"""Random streams keyed by their purpose, so that nothing else a run does can shift them."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch


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
