"""What several commands share: their options, the store they open, and what they print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from canary_mlflow.edge import reader_left
from canary_mlflow.errors import CanaryError, UsageError
from canary_mlflow.shown import json_text

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.reports.decision import Decision


def store_option_of(default: str) -> Callable[[Any], Any]:
    """The option --tracking-uri; `default` says what is used without it."""
    return click.option(
        "--tracking-uri",
        envvar="MLFLOW_TRACKING_URI",
        show_envvar=True,
        metavar="URI",
        help=f"The MLflow store. Without it: {default}.",
    )


store_option = store_option_of("sqlite:///mlflow.db in the working folder")
json_option = click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout; the report goes to stderr.")
full_option = click.option("--full", is_flag=True, help="Every check, note and warning.")
policy_option = click.option(
    "--policy",
    metavar="NAME|PATH",
    help="A name of conf/gate/ or a YAML file. Without it: the candidate's own tier.",
)

launcher_option = click.option(
    "--launcher",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="Where runs are made: on this machine, or pair by pair on the Ray cluster at RAY_ADDRESS.",
)


def key_values(option: str, words: Sequence[str], example: str) -> dict[str, str]:
    """KEY=VALUE words as a mapping. Raises UsageError."""
    pairs = [word.partition("=") for word in words]
    for key, sign, value in pairs:
        if not (key and sign and value):
            raise UsageError(f"{option}: found {key + sign + value!r}; expected KEY=VALUE, such as {example}")
    return {key: value for key, _, value in pairs}


def open_store(uri: str | None) -> MlflowClient:
    """The client of a store that exists; raises StoreError otherwise."""
    from canary_mlflow.tracking.stores.store import existing_store

    return existing_store(uri)


def print_decision(decision: Decision, as_json: bool = False, *, full: bool) -> None:
    """Print the report for people on stdout; with --json it moves to stderr."""
    from canary_mlflow.reports import terminal
    from canary_mlflow.reports.study import verdict_json

    try:
        if as_json:
            click.echo(verdict_json(decision), nl=False)
        terminal.show(decision, sys.stderr if as_json else sys.stdout, full=full, curve=partial(curve_of, decision))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has left (`… | head`); the decision and its exit code stand
        reader_left()


def curve_of(decision: Decision) -> list[str]:
    """The curve that decided, in letters; none of files, nor where the store cannot be read."""
    from mlflow.exceptions import MlflowException

    from canary_mlflow.reports.deciding import in_letters
    from canary_mlflow.tracking.stores.store import reading_store

    try:
        readable = decision.store and "***" not in decision.store  # which stands for a password
        return in_letters(reading_store(decision.store), decision) if readable else []
    except (CanaryError, MlflowException):
        return []


def print_json(schema: str, value: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout, with the name of its schema (canary_mlflow/schemas)."""
    from canary_mlflow.schemas import stamped

    click.echo(json_text(stamped(schema, value)))


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
