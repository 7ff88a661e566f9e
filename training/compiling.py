"""Loads what compiles functions while it is imported, without loading torch's compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def load_4_bit() -> None:
    """Load bitsandbytes, which PEFT imports whether it is used or not. It compiles three functions while it is
    imported, and the compiler would be a tenth of all that a run loads."""
    if find_spec("bitsandbytes") is not None:
        with suppress(Exception), compiled_later():  # PEFT will see whether it can be imported
            import_module("bitsandbytes")


@contextmanager
def compiled_later() -> Iterator[None]:
    """Let `torch.compile` compile a function when it is first called, not when its module is imported."""
    import torch

    compile_now = torch.compile

    def compile_later(function: Callable[..., Any] | None = None, **how: Any) -> Any:
        if function is None:
            return lambda given: compile_later(given, **how)

        @functools.cache
        def compiled() -> Any:
            return compile_now(function, **how)

        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            return compiled()(*given, **named)

        return call

    torch.compile = compile_later
    try:
        yield
    finally:
        torch.compile = compile_now
