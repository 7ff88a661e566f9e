"""`canary run`: the training command, which replaces this process."""

from __future__ import annotations

import os
import sys

import click

from canary_mlflow.commands.shared import store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.module_runner import module_command


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog=EXIT_CODES,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OVERRIDES]...")
@store_option
@click.pass_context
def run(ctx: click.Context, arguments: tuple[str, ...], tracking_uri: str | None) -> None:
    """Train, record, register and gate. The same as `python -m training`, whatever folders are here.

    Takes Hydra's overrides, for example: canary run tier=smoke algo=sft seed=7
    """
    from canary_mlflow.installation import require_training_stack

    if set(arguments) & {"-h", "--help"}:
        click.echo(ctx.get_help())
        click.echo("\nAll configuration keys: canary run --cfg job")
        return
    require_training_stack()
    if tracking_uri:
        os.environ["MLFLOW_TRACKING_URI"] = tracking_uri
    sys.stdout.flush()
    # Replacing this process passes signals, progress bar and exit code through untouched.
    os.execv(sys.executable, [*module_command("canary_mlflow.training"), *arguments])
