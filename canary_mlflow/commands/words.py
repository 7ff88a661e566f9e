"""Options whose values are all words up to the next option, as a shell's * gives them."""

from __future__ import annotations

import click


class ManyWords(click.Command):
    """A command that takes `--baseline a.csv b.csv` for `--baseline a.csv --baseline b.csv`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        many = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        return super().parse_args(ctx, repeated(args, many))


def repeated(words: list[str], options: set[str]) -> list[str]:
    """The words with a many-valued option repeated before each of its values, as click wants them."""
    found: list[str] = []
    option = ""
    for at, word in enumerate(words):
        if word == "--":  # the words of another command
            return found + words[at:]
        if word.startswith("-") and word != "-":
            option = word if word in options else ""
            if not option:
                found.append(word)
        elif option:
            found += [option, word]
        else:
            found.append(word)
    return found
