"""Paragraphs and labels laid out by rich, as plain text or on a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 132  # columns, if there is no terminal to ask


def as_text(made: Callable[[int], RenderableType], width: int = PLAIN_WIDTH) -> str:
    """What `made` returns for `width` columns as text, without colours and without blanks at the ends of lines."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    console.print(made(console.width))
    with_padding = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
    return "\n".join(line.rstrip() for line in with_padding.splitlines()) + "\n"


def print_on(stream: IO[str], made: Callable[[int], RenderableType]) -> None:
    """Print it on a stream; on a terminal, with its width and colours, or none under NO_COLOR."""
    if not stream.isatty():
        stream.write(as_text(made))
        return
    console = Console(file=stream, highlight=False)
    console.print(made(console.width))


def indented(text: str, style: str = "") -> RenderableType:
    """A paragraph under the first line."""
    return Padding(Text(text, style=style), (0, 0, 0, 2))


def labelled(label: str, text: str | Text) -> RenderableType:
    """`label   text`, with continuation lines under the text."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=12)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"  {label}", style="bold"), text if isinstance(text, Text) else Text(text))
    return grid
