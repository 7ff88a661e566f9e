"""`canary report`, `samples` and `diff`: what is recorded of runs, sessions and versions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from canary_mlflow.analysis.formats import FORMATS, Format, made, write
from canary_mlflow.commands.shared import full_option, open_store, print_json, store_option
from canary_mlflow.edge import EXIT_CODES, reader_left
from canary_mlflow.errors import UsageError
from canary_mlflow.shown import echo, say

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


@click.command()
@click.argument("run")
@click.option("--full", is_flag=True, help="Every step, and texts in full.")
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout.")
@store_option
def samples(run: str, full: bool, as_json: bool, tracking_uri: str | None) -> None:
    """Show a run's sampled answers next to the champion's.

    RUN is a run id, a session id, MODEL/VERSION or MODEL@champion; of several runs, the first with samples. Shows
    answers to fixed prompts over time and, for RL, the best and worst answers by reward.
    """
    from canary_mlflow.registry.artifacts import find_samples
    from canary_mlflow.reports.samples import as_dict, lines

    found = find_samples(open_store(tracking_uri), run)
    if as_json:
        print_json("samples", as_dict(found))
        return
    for line in lines(found, full=full):
        echo(line)


DIFF_CODES = """\b
Exit codes:
  0  nothing differs, or by rounding alone
  1  something differs
  2  wrong use or configuration
  3  not comparable: other work, other hardware, or facts that are not recorded
  4  something outside failed (store, disk, machine, signal)
"""


@click.command(epilog=DIFF_CODES)
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout; the report goes to stderr.")
@click.option(
    "--budget", multiple=True, metavar="COUNT=SHARE", help="A limit on a step's work: flops=0.1, traffic, allocated."
)
@store_option
@click.pass_context
def diff(ctx: click.Context, a: str, b: str, as_json: bool, budget: tuple[str, ...], tracking_uri: str | None) -> None:
    """List the exact differences between A and B. Facts, configuration, code, packages, data, hardware; judges nothing.

    Each is a run id, a session id, MODEL/VERSION, MODEL@champion or models:/MODEL/VERSION. First-step facts are
    compared between runs of one seed. With --budget it ends with 1 if a step does more work than that.
    """
    from canary_mlflow.api import diff as compare_exactly
    from canary_mlflow.reports.diff import OTHER, lines

    limits = dict(map(_limit, budget))
    found = compare_exactly(a, b, tracking_uri=tracking_uri)
    if as_json:
        print_json("diff", found.to_dict())
    for line in lines(found):
        echo(line, err=as_json)
    over = found.over(limits)
    for line in over:
        echo(f"  Over the budget: {line}", err=as_json)
    ctx.exit(OTHER if over else found.exit_code)


def _limit(word: str) -> tuple[str, float]:
    from canary_mlflow.gates.facts.work import COUNTS

    name, _, share = word.partition("=")
    if name not in COUNTS or not share.replace(".", "", 1).isdigit():
        raise UsageError(f"--budget: found {word!r}; expected COUNT=SHARE, such as flops=0.1; {', '.join(COUNTS)}")
    return name, float(share)
