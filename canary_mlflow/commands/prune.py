"""`canary prune` and `verify-weights`: the files of versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from canary_mlflow.commands.shared import open_store, print_json, store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.shown import echo, say

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.registry.pruning.needed import Terms
    from canary_mlflow.registry.pruning.pruning import Fate


UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
SHOWN = 12  # versions that a line names


def lines(fates: Sequence[Fate], *, done: bool) -> Iterator[str]:
    """The table, and the total size."""
    from canary_mlflow.gates.model.wording import counted

    for model, its in groupby(fates, key=lambda fate: fate.model):
        yield model
        yield from table(list(its), done=done)
    going = [fate for fate in fates if fate.goes]
    size = amount(sum(fate.bytes for fate in going))
    files = counted(sum(fate.files for fate in going), "file")
    if not going:
        yield "Nothing to remove."
    elif done:
        yield f"{size} in {files} removed."
    else:
        yield f"{size} in {files} would go. Nothing was changed; to remove them: the same command with --yes"


def table(fates: Sequence[Fate], *, done: bool) -> Iterator[str]:
    """The lines of one model, those to be removed first."""
    word = {True: "gone" if done else "goes", False: "stays"}
    groups: dict[tuple[bool, str], list[Fate]] = {}
    for fate in fates:
        groups.setdefault((fate.goes, fate.why), []).append(fate)
    rows = [
        (word[goes], named(its), amount(sum(one.bytes for one in its)) if goes else "", why)
        for (goes, why), its in sorted(groups.items(), key=lambda item: not item[0][0])
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    for state, which, size, why in rows:
        yield f"  {state:<{widths[0]}}  {which:<{widths[1]}}  {size:>{widths[2]}}  {why}".rstrip()


def named(fates: Sequence[Fate]) -> str:
    """`version 3`, `versions 3, 5`."""
    from canary_mlflow.gates.model.wording import listed

    numbers = sorted((fate.version for fate in fates), key=int)
    return f"version{'s' if len(numbers) > 1 else ''} {listed(numbers, most=SHOWN)}"


def amount(size: float) -> str:
    """`1.2 MiB`."""
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


@click.command(epilog=EXIT_CODES)
@click.option("--yes", is_flag=True, help="Remove them. Without it: say what would go, and change nothing.")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="Former champions that stay, of each model; `canary rollback` returns to the first.",
)
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=0,
    metavar="DAYS",
    help="Only what was registered before that.",
)
@click.option("--model", metavar="NAME", help="Only this model; else all.")
@click.option("--artifacts", default="", metavar="PLACE", help="A server's --artifacts-destination, for its database.")
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout; the table goes to stderr.")
@store_option
def prune(
    yes: bool,
    keep: int,
    older_than: float,
    model: str | None,
    artifacts: str,
    as_json: bool,
    tracking_uri: str | None,
) -> None:
    """Remove weights, samples and traces that nobody needs. A dry run, unless --yes.

    Removes those of versions with a BLOCK and of older champions. Metrics, params, tags, reports and the ledger always
    stay. A signed row says who gave up which files of a version, which then never becomes champion.
    """
    from canary_mlflow.registry.pruning.needed import Terms, ours
    from canary_mlflow.registry.pruning.pruning import plan

    client = open_store(tracking_uri)
    terms = Terms(keep=keep, older_than=older_than)
    fates = plan(client, model, terms, artifacts) if model else list(of_all(client, ours(client), terms, artifacts))
    if yes:
        fates = list(carried_out(client, fates, terms, artifacts))
    if as_json:
        freed = sum(fate.bytes for fate in fates if fate.goes)
        print_json("pruning", {"done": yes, "bytes": freed, "fates": [asdict(fate) for fate in fates]})
    for line in lines(fates, done=yes):
        echo(line, err=as_json)


def of_all(client: MlflowClient, models: list[str], terms: Terms, artifacts: str) -> Iterator[Fate]:
    """The plans of all models that the caller may prune. Raises Refused if there are none."""
    from canary_mlflow.errors import Refused
    from canary_mlflow.registry.pruning.pruning import plan

    refused: list[Refused] = []
    for model in models:
        try:
            yield from plan(client, model, terms, artifacts)
        except Refused as error:
            refused.append(error)
            say(f"{model}: left out: {error}")
    if refused and len(refused) == len(models):
        raise refused[-1]


def carried_out(client: MlflowClient, fates: list[Fate], terms: Terms, artifacts: str) -> Iterator[Fate]:
    """Remove what goes, and yield each fate; one that stays after all says why."""
    from canary_mlflow.errors import UsageError
    from canary_mlflow.registry.pruning.pruning import prune as give_up

    for fate in fates:
        if not fate.goes:
            yield fate
            continue
        try:
            yield give_up(client, fate.model, terms, artifacts, version=fate.version)
        except UsageError as error:  # the others can still go
            yield replace(fate, goes=False, why=str(error), files=0, bytes=0)


CODES = """\b
Exit codes:
  0  every file is the one that was sealed, and there are no others
  1  a file differs, is missing, or was added
  2  wrong use, or no seal that holds
  4  the files or the registry cannot be read
"""


@click.command("verify-weights", epilog=CODES)
@click.argument("version")
@click.option("--dir", "folder", type=click.Path(path_type=Path), metavar="DIR", help="The files to check, elsewhere.")
@store_option
@click.pass_context
def verify_weights(ctx: click.Context, version: str, folder: Path | None, tracking_uri: str | None) -> None:
    """Check the files of VERSION against its seal.

    The seal lists the files of the version at registration. VERSION is models:/MODEL@champion or models:/MODEL/3.
    Without --dir the files are read from the registry's place.
    """
    from canary_mlflow.analysis import weights

    client = open_store(tracking_uri)
    found = weights.named_version(client, version)
    subject, sealed = f"{found.name} version {found.version}", weights.sealed_files(client, found)
    there = weights.files_of(client, found) if folder is None else weights.files_in(folder)
    if different := weights.differing(sealed, there):
        for what in different:
            echo(f"{subject}: {what} since it was sealed")
        ctx.exit(1)
    echo(f"{subject}: {len(sealed)} files, all as sealed")
