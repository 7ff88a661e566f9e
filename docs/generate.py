"""Write the pages that are made from the code: `make docs`, or python docs/generate.py [--check].

`commands.md`: every command with its help. In `measured/`, `gpu.md` has the tables of what benchmarks/on_card.py has
measured, and `stacks.md` those of benchmarks/stacks.py.
With --check nothing is written: exit code 1 when a page is not what the code says now.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
MADE = "Made by `make docs`; edit the code, not this page."
WIDTH = 110
GENERAL = ("-h, --help",)
OFTEN = 2  # commands that share an option, whose text then stands once


def walk(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """A command and everything below it, each in the context in which it would print its help."""
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield context
    if isinstance(command, click.Group):
        for name_below in command.list_commands(context):
            below = command.get_command(context, name_below)
            if below is not None:
                yield from walk(below, name_below, context)


def options(context: click.Context) -> dict[str, str]:
    """Each option of a command with what it does."""
    params = (one for one in context.command.get_params(context) if isinstance(one, click.Option))
    records = (one.get_help_record(context) for one in params if "--help" not in one.opts)
    return dict(record for record in records if record is not None)


def listed(rows: Mapping[str, str], first: str = "") -> list[str]:
    """Options or commands in two columns, below a first line."""
    formatter = click.HelpFormatter(width=WIDTH)
    if rows:
        formatter.write_dl(list(rows.items()))
    return ["", "```", *([first] if first else []), *formatter.getvalue().rstrip().splitlines(), "```"]


def commands() -> str:
    """The page of all commands; what many of them share stands once, at its top."""
    from canary_mlflow.cli import canary
    from canary_mlflow.edge import EXIT_CODES

    every = list(walk(canary, "canary"))
    leaves = [one for one in every if not isinstance(one.command, click.Group)]
    counted = Counter(record for one in leaves for record in options(one).items())
    often = [record for record, count in counted.most_common() if count >= OFTEN]
    shared = dict(sorted(dict(reversed(often)).items()))  # of one name, the commonest text
    lines = ["# Commands", "", f"{MADE} `canary --help` lists them, `canary COMMAND --help` prints the same.", ""]
    lines += [
        "Options of several commands:",
        *listed(shared),
        "",
        "Unless a command says otherwise, it ends with:",
        "",
    ]
    lines += ["```", *dedent("\n".join(EXIT_CODES.splitlines()[2:])).splitlines(), "```"]
    for context in every:
        command = context.command
        lines += ["", f"## {context.command_path}", "", inspect.cleandoc(command.help or "")]
        if isinstance(command, click.Group):
            continue
        found = options(context)
        own = {name: said for name, said in found.items() if name != "--json" and shared.get(name) != said}
        usage = " ".join(command.collect_usage_pieces(context)[1:])
        also = " ".join(name.split()[0].strip(",") for name in found if name not in own and name not in GENERAL)
        lines += listed(own, " ".join(f"{context.command_path} {usage} {also}".split()))
        usual = [line.strip() for line in EXIT_CODES.splitlines()]
        codes = [line.strip() for line in (command.epilog or "").replace("\b\n", "").strip().splitlines()[1:]]
        if others := [line for line in codes if line not in usual]:
            lines += ["", "Other codes:", "", "```", *others, "```"]
    return "\n".join(lines) + "\n"


def gpu() -> str:
    """The page on GPUs, with the tables of what was measured on a card between their marks."""
    sys.path.append(str(ROOT / "benchmarks"))
    from card_tables import BEGIN, END, section

    before, _, rest = (ROOT / "docs" / "measured" / "gpu.md").read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{section()}\n{END}{after}"


def stacks() -> str:
    """The page on releases, with the tables of what was tried in each."""
    sys.path.append(str(ROOT / "benchmarks"))
    from stacks import section

    mark = "<!-- stacks -->\n"
    before, _, _ = (ROOT / "docs" / "measured" / "stacks.md").read_text().partition(mark)
    return f"{before}{mark}\n{section()}\n"


PAGES = {"commands.md": commands, "measured/gpu.md": gpu, "measured/stacks.md": stacks}


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
