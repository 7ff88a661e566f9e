"""`canary watch`: shows a running training on the terminal, from any store that MLflow reaches."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import TYPE_CHECKING

import click

from canary_mlflow import tags
from canary_mlflow.commands.shared import open_store, store_option
from canary_mlflow.edge import OUTSIDE, reader_left
from canary_mlflow.errors import StoreError
from canary_mlflow.shown import echo, say
from canary_mlflow.tracking.stores.places import without_password

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlflow import MlflowClient

    from canary_mlflow.reports.following import Sight

WATCH_CODES = """\b
Exit codes:
  0  it finished, or --once showed it
  1  the watch calls it critical or stopped it, or it broke off by instability, memory or time
  2  wrong use, no such run
  4  it broke off otherwise, the store does not answer at the start, Ctrl-C
"""
LOST = ("critical", "stopped")


@click.command(epilog=WATCH_CODES)
@click.argument("run", required=False, metavar="[RUN|SESSION]")
@click.option("--every", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, metavar="SECONDS")
@click.option("--once", is_flag=True, help="Show the present state, and end.")
@store_option
@click.pass_context
def watch(ctx: click.Context, run: str | None, every: float, once: bool, tracking_uri: str | None) -> None:
    """Follow a run in the terminal until it ends. Shows progress, curves and warnings of the watch.

    A session is followed from run to run. Without RUN: the one that began last and is still going on. Reads only; also
    works over a tracking server. Where stdout is not a terminal, it prints a line for each new thing.
    """
    from canary_mlflow.reports.following import newest_running

    say_when_nobody_answers()
    client = open_store(tracking_uri)
    chosen = run or newest_running(client)
    try:
        last = show(client, chosen, every, once)
    except BrokenPipeError:
        reader_left()
        ctx.exit(0)
    ctx.exit(0 if once else exit_code(last))


def say_when_nobody_answers() -> None:
    """Report an unreachable store early: MLflow's client would retry silently for minutes, and its HTTP library would
    write across the screen."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    logging.getLogger("urllib3").setLevel(logging.ERROR)


def exit_code(sight: Sight) -> int:
    """The exit code for a run that has ended."""
    from canary_mlflow.tracking.describing.failures import UNSTABLE

    run = sight.run
    if run.level in LOST or run.tags.get(tags.FAILURE, "") in UNSTABLE:
        return 1
    return 0 if run.status == "FINISHED" else OUTSIDE


def show(client: MlflowClient, run_id: str, every: float, once: bool) -> Sight:
    """Print what is seen until the run ends; return what was seen last."""
    from rich.console import Console
    from rich.live import Live

    from canary_mlflow.reports.following import lines, screen

    before: Sight | None = None
    if not sys.stdout.isatty():
        said = ""
        for sight, trouble in sights(client, run_id, every, once):
            if trouble and trouble != said:
                say(trouble)
            if not trouble:
                for line in lines(before, sight, now()):
                    echo(line)
                sys.stdout.flush()
            before, said = sight, trouble
    else:
        with Live(console=Console(highlight=False), auto_refresh=False) as live:
            for sight, trouble in sights(client, run_id, every, once):
                live.update(screen(sight, now(), trouble), refresh=True)
                before = sight
    assert before is not None
    return before


def sights(client: MlflowClient, run_id: str, every: float, once: bool) -> Iterator[tuple[Sight, str]]:
    """What is seen now and then every `every` seconds, each with a sentence on why there is nothing new, or ''."""
    from canary_mlflow.reports.following import WATCHED, look

    seen = look(client, run_id, WATCHED)
    trouble = ""
    while True:
        yield seen, trouble
        if once or seen.ended:
            return
        time.sleep(every)
        try:
            seen, trouble = look(client, run_id, WATCHED), ""
        except StoreError as error:  # it may come back; what was seen last stays on the screen
            why = "nobody answers there" if "Max retries exceeded" in str(error) else str(error)
            trouble = f"no news: {without_password(client.tracking_uri)}: {why}; asking again every {every:g} s"


def now() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)
