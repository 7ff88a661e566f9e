"""`canary prune`: free the space of weights, samples and traces that nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from canary_mlflow.commands.shared import open_store, print_json, store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.shown import echo, say

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.registry.pruning.needed import Terms
    from canary_mlflow.registry.pruning.pruning import Fate


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

    Removes those of versions with a BLOCK and of older champions. Keeps those of every version with an alias, of former
    champions that a rollback may return to, of versions that are not judged or INCONCLUSIVE, and of sessions that still
    run. Metrics, params, tags, reports and the ledger always stay. A signed
    row says who gave up which files of a version, which then never becomes champion.
    """
    from canary_mlflow.registry.pruning.needed import Terms, ours
    from canary_mlflow.registry.pruning.pruning import plan
    from canary_mlflow.reports.pruning import lines

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
