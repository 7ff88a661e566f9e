"""`canary samples`: what a run's model answered, beside the champion's."""

from __future__ import annotations

import click

from canary_mlflow.commands.shared import open_store, print_json, store_option
from canary_mlflow.shown import echo


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
