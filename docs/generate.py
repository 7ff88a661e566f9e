"""Write the pages that are made from the code: `make docs`, or python docs/generate.py [--check].

`commands.md`: every command with its help.
`gpu.md`: the tables of what benchmarks/on_card.py has measured. `compatibility.md`: those of benchmarks/stacks.py.
With --check nothing is written: exit code 1 when a page is not what the code says now.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
MADE = "Made by `make docs`; edit the code, not this page."
WIDTH = 110


def walk(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """A command and everything below it, each in the context in which it would print its help."""
    settings = {"max_content_width": WIDTH, "terminal_width": WIDTH, **command.context_settings}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    yield context
    if isinstance(command, click.Group):
        for name_below in command.list_commands(context):
            below = command.get_command(context, name_below)
            if below is not None:
                yield from walk(below, name_below, context)


def commands() -> str:
    """The page of all commands, each with what its --help prints."""
    from canary_mlflow.cli import canary

    lines = ["# Commands", "", f"What `--help` prints. {MADE}"]
    for context in walk(canary, "canary"):
        lines += ["", f"## {context.command_path}", "", "```", context.get_help().rstrip(), "```"]
    return "\n".join(lines) + "\n"


def gpu() -> str:
    """The page on GPUs, with the tables of what was measured on a card between their marks."""
    sys.path.append(str(ROOT / "benchmarks"))
    from card_tables import BEGIN, END, section

    before, _, rest = (ROOT / "docs" / "gpu.md").read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{section()}\n{END}{after}"


def compatibility() -> str:
    """The page on releases, with the tables of what was tried in each."""
    sys.path.append(str(ROOT / "benchmarks"))
    from stacks import section

    mark = "<!-- stacks -->\n"
    before, _, _ = (ROOT / "docs" / "compatibility.md").read_text().partition(mark)
    return f"{before}{mark}\n{section()}\n"


PAGES = {"commands.md": commands, "gpu.md": gpu, "compatibility.md": compatibility}


def main(check: bool) -> int:
    """Write the pages, or name those that are stale."""
    stale = []
    for name, make in PAGES.items():
        path, text = ROOT / "docs" / name, make()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not check:
                path.write_text(text)
    for name in stale:
        print(f"docs/{name}: {'not what the code says; run: make docs' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
