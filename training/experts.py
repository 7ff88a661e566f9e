"""A mixture of experts: what its router returns is for training alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def router_silent(model: Any) -> Iterator[None]:
    """Have the model return no router logits for a while; TRL switches them on for the loss that balances experts.

    While answers are drawn they break Transformers' generation: the balance is computed over the attention mask, which
    is longer than the tokens that are not in the cache yet. Any other model stays as it is.
    """
    settings = model.config.get_text_config()
    before = getattr(settings, "output_router_logits", None)
    if not before:
        yield
        return
    settings.output_router_logits = False
    try:
        yield
    finally:
        settings.output_router_logits = before
