"""`canary report`: everything about a run, a session or a version, on the terminal or as files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from canary_mlflow.analysis.formats import FORMATS, Format, made, write
from canary_mlflow.commands.shared import full_option, store_option
from canary_mlflow.edge import EXIT_CODES, reader_left
from canary_mlflow.errors import UsageError
from canary_mlflow.shown import say

STDOUT = Path("-")


def format_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each format of the table."""
    for one in reversed(FORMATS):
        kind = click.Path(dir_okay=one.folder, file_okay=not one.folder, allow_dash=not one.folder, path_type=Path)
        option = click.option(f"--{one.option}", type=kind, metavar="DIR" if one.folder else "FILE", help=one.help)
        command = option(command)
    return command


@click.command(epilog=EXIT_CODES)
@click.argument("subject", metavar="RUN|SESSION|VERSION")
@format_options
@click.option(
    "--policy", metavar="NAME|PATH", help="Policy where nobody has judged yet. Without it: the runs' own tier."
)
@full_option
@store_option
def report(subject: str, policy: str | None, full: bool, tracking_uri: str | None, **places: Path | None) -> None:
    """Show a run, a session or a model version. Verdict, curves, instabilities, performance, memory, evidence.

    VERSION is MODEL/VERSION, MODEL@champion or models:/MODEL/VERSION. Without an option it prints to the terminal.
    Reads only; exits with 0 whatever the verdict.
    """
    from canary_mlflow.analysis.reading import study_of
    from canary_mlflow.analysis.subject import find_subject
    from canary_mlflow.tracking.stores.store import reading_store

    one_place_each(places)
    client = reading_store(tracking_uri)
    study = study_of(client, find_subject(client, subject, policy))
    wanted = [(one, place) for one in FORMATS if (place := places[one.option]) is not None]
    files = [(one, place, made(one, study)) for one, place in wanted]  # all of them, before any is written
    for one, place, found in files:
        deliver(one, place, found)
    if not wanted:
        from canary_mlflow.reports import terminal

        try:
            terminal.show_study(study, sys.stdout, full=full)
            sys.stdout.flush()
        except BrokenPipeError:
            reader_left()


def one_place_each(places: Mapping[str, Path | None]) -> None:
    """Raise UsageError if one format would overwrite another's file."""
    taken: dict[Path, str] = {}
    for option, place in places.items():
        if place is None:
            continue
        other = taken.setdefault(place if place == STDOUT else place.resolve(), option)
        if other != option:
            raise UsageError(f"--{other} and --{option} both name {place}; expected a place for each; name another")


def deliver(wanted: Format, place: Path, files: list[tuple[str, bytes]]) -> None:
    """Write one format, and say where it is."""
    if place == STDOUT:
        click.echo(b"".join(content for _, content in files), nl=False)
        return
    if not files:
        say(f"--{wanted.option}: nothing to draw: no series has a finite value")
        return
    write(files, place)
    count = f" ({len(files)} pictures)" if wanted.folder else ""
    say(f"wrote {place}{count}")
