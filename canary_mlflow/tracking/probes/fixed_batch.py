"""What a model answers to one batch that everybody can make again: the same tokens for the same vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

LENGTH = 24  # tokens
POSITIONS = 8  # whose answer is kept, from the end
COLUMNS = 64  # entries of the vocabulary of which it is kept, evenly spread
GREEDY = 8  # tokens that follow, each the likeliest
SPECIAL = ("_token_id", "_token_index", "_token_ids")


def answer_of(model: Any, ids: Sequence[int] | None = None) -> dict[str, Any]:
    """The model's logits in float32 for these tokens, by default those of its vocabulary, and how it goes on. Its
    modes, its gradients and the generators of random numbers are left as they were."""
    tokens = list(ids or tokens_for(model))
    devices = list({one.device for one in model.parameters() if one.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), torch.no_grad(), evaluating(model):
        found, plain = logits_of(model, tokens)
        columns = torch.linspace(0, found.shape[-1] - 1, min(COLUMNS, found.shape[-1])).long().unique()
        said = {"ids": tokens, "width": int(found.shape[-1]), "columns": columns.tolist(), "plain": plain,
                "logits": found[-POSITIONS:, columns.to(found.device)].tolist(), "next": [], "gaps": []}  # fmt: skip
        while len(found) == len(tokens) and len(said["next"]) < GREEDY:
            best = found[-1].topk(2)
            said["next"].append(int(best.indices[0]))
            said["gaps"].append(float(best.values[0] - best.values[1]))
            found, _ = logits_of(model, [*tokens[len(said["next"]) :], *said["next"]])
    return said


def tokens_for(model: Any) -> list[int]:
    """The batch: tokens far from each other, none that the model's configuration gives a meaning."""
    size = int(model.get_input_embeddings().weight.shape[0])
    named = (one for name, one in vars(model.config).items() if name.endswith(SPECIAL))
    meant = {one for found in named for one in (found if isinstance(found, list) else [found])}
    spread = [(7 + at * (int(size * 0.618) | 1)) % size for at in range(8 * LENGTH)]
    longest = min(LENGTH, getattr(model.config, "max_position_embeddings", None) or LENGTH)
    return ([one for one in spread if one not in meant] or spread)[:longest]


def logits_of(model: Any, tokens: Sequence[int]) -> tuple[torch.Tensor, bool]:
    """[positions, entries], one row for a model that classifies; and whether in the precision of its weights alone."""
    batch = torch.tensor([tokens], device=model.get_input_embeddings().weight.device)
    given = {"input_ids": batch, "attention_mask": torch.ones_like(batch)}
    if getattr(model.config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = batch
    plain = True
    try:
        said = type(model).forward(model, **given)  # past the autocast that accelerate puts around `forward`
    except Exception:  # noqa: BLE001 - an attention that float32 does not have
        plain, said = False, model(**given)
    found = said["logits"] if isinstance(said, Mapping) and "logits" in said else said[0]
    return found.float()[0].reshape(-1, found.shape[-1]), plain


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout, for the length of a block."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode
