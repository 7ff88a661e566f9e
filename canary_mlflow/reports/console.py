"""What rich has laid out, as plain text or on a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO

from rich.console import Console, RenderableType

PLAIN_WIDTH = 132  # columns, where there is no terminal to ask


def as_text(made: Callable[[int], RenderableType], width: int = PLAIN_WIDTH) -> str:
    """What is made for `width` columns, without colours and without blanks at the ends of lines."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    console.print(made(console.width))
    with_padding = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
    return "\n".join(line.rstrip() for line in with_padding.splitlines()) + "\n"


def print_on(stream: IO[str], made: Callable[[int], RenderableType]) -> None:
    """Print it on a stream; on a terminal, colours, NO_COLOR and the width are the terminal's."""
    if not stream.isatty():
        stream.write(as_text(made))
        return
    console = Console(file=stream, highlight=False)
    console.print(made(console.width))
